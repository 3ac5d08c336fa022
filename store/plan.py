"""Which rank reads which part of which shard: a pure function of the index.

Shards are put in a random order, their chains laid end to end, and that line is
cut into `world_size` pieces of equal cost. Each piece is a few contiguous spans:
one ranged read each, every chain in exactly one. Any world size cuts the same
line, so a run that grows or shrinks moves as few bytes as possible.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evofeed.store.manifest import canonical_json

MAX_WORLD_SIZE: Final = 65_536
_Line = tuple[list[str], np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def shard_plan(
    index: pa.Table, digest: str, world_size: int, *, seed: int = 0, epoch: int = 0
) -> dict[str, Any]:
    """The plan of an epoch: for each rank its spans, chains, bytes and cost.

    A span is `{"shard", "offset", "nbytes", "chains"}`, whole chains lying side by
    side in the shard's file. The cost of a rank lies within the dearest chain's
    of the mean.

    Args:
        index: the snapshot's index.
        digest: the snapshot.
        world_size: ranks to cut for.
        seed: of the run.
        epoch: of the run; each has its own order of shards.

    Raises:
        ValueError: a world size below 1 or above `MAX_WORLD_SIZE`.
    """
    if not 1 <= world_size <= MAX_WORLD_SIZE:
        raise ValueError(f"world_size {world_size}: give 1 to {MAX_WORLD_SIZE}")
    names, shard, offset, nbytes, cost = _line(index, f"{digest}\0{seed}\0{epoch}\0")
    total = int(cost.sum())
    cuts = np.array([rank * total // world_size for rank in range(1, world_size)], np.int64)
    owner = np.searchsorted(cuts, np.cumsum(cost) - cost, side="right")
    # A span ends where the shard or the rank changes, or a hole lies between two chains.
    hole = offset[1:] != offset[:-1] + nbytes[:-1]
    ends = np.flatnonzero((np.diff(shard) != 0) | (np.diff(owner) != 0) | hole) + 1
    ranks: list[dict[str, Any]] = [
        {"rank": rank, "chains": 0, "nbytes": 0, "cost": 0, "spans": []}
        for rank in range(world_size)
    ]
    for span in np.split(np.arange(len(shard)), ends) if len(shard) else ():
        first, size = span[0], int(nbytes[span].sum())
        mine = ranks[owner[first]]
        mine["spans"].append(
            {
                "shard": names[shard[first]],
                "offset": int(offset[first]),
                "nbytes": size,
                "chains": len(span),
            }
        )
        mine["chains"] += len(span)
        mine["nbytes"] += size
        mine["cost"] += int(cost[span].sum())
    return {
        "format": "evofeed-plan",
        "version": 1,
        "snapshot": digest,
        "seed": seed,
        "epoch": epoch,
        "world_size": world_size,
        "ranks": ranks,
    }


def _line(index: pa.Table, salt: str) -> _Line:
    """Shard names in this epoch's order; each chain's shard, offset, bytes and cost along it."""
    table = index.select(["shard", "offset", "nbytes", "cost"]).combine_chunks()
    coded = table["shard"].dictionary_encode().combine_chunks()
    known = coded.dictionary.to_pylist()
    names = sorted(known, key=lambda name: hashlib.sha256(f"{salt}{name}".encode()).digest())
    place = {name: number for number, name in enumerate(names)}
    shard = np.array([place[name] for name in known], np.int64)[np.asarray(coded.indices)]
    columns = [
        np.asarray(table[name].to_numpy()).astype(np.int64) for name in ("offset", "nbytes", "cost")
    ]
    line = np.lexsort([columns[0], shard])
    return names, shard[line], columns[0][line], columns[1][line], columns[2][line]


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """The plan's one spelling: the same wherever it is computed."""
    return canonical_json(plan)

"""Which rank reads which part of which shard: a pure function of the index.

Shards are put in a random order, their chains laid end to end, and that line is
cut into `world_size` pieces of equal cost. Each piece is a few contiguous spans:
one ranged read each, every chain in exactly one. Any world size cuts the same
line, so a run that grows or shrinks moves as few bytes as possible.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from evofeed.store.manifest import canonical_json

MAX_WORLD_SIZE = 65_536


def shard_plan(
    index: pa.Table, digest: str, world_size: int, *, seed: int = 0, epoch: int = 0
) -> dict[str, Any]:
    """The plan of an epoch: for each rank its spans, chains, bytes and cost.

    A span is `{"shard", "offset", "nbytes", "chains"}`, whole chains lying side by
    side in the shard's file. Costs of two ranks differ by less than the cost of
    the dearest chain.

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
    table = index.select(["shard", "offset", "nbytes", "cost"]).combine_chunks()
    names = table["shard"].unique().to_pylist()
    names.sort(key=lambda name: _key(digest, seed, epoch, name))
    place = {name: number for number, name in enumerate(names)}
    shard = np.array([place[name] for name in table["shard"].to_pylist()], np.int64)
    offset, nbytes, cost = (_integers(table, name) for name in ("offset", "nbytes", "cost"))
    line = np.lexsort([offset, shard])
    shard, offset, nbytes, cost = shard[line], offset[line], nbytes[line], cost[line]
    total = int(cost.sum())
    cuts = np.array([rank * total // world_size for rank in range(1, world_size)], np.int64)
    rank = np.searchsorted(cuts, np.cumsum(cost) - cost, side="right")
    # A span ends where the shard or the rank changes, or a hole lies between two chains.
    edge = (np.diff(shard) != 0) | (np.diff(rank) != 0) | (offset[1:] != offset[:-1] + nbytes[:-1])
    starts = np.flatnonzero(np.concatenate([np.ones(min(len(shard), 1), bool), edge]))
    ranks: list[dict[str, Any]] = [
        {"rank": r, "chains": 0, "nbytes": 0, "cost": 0, "spans": []} for r in range(world_size)
    ]
    for start, stop in zip(starts, [*starts[1:], len(shard)], strict=True):
        mine, size = ranks[rank[start]], int(nbytes[start:stop].sum())
        mine["spans"].append(
            {
                "shard": names[shard[start]],
                "offset": int(offset[start]),
                "nbytes": size,
                "chains": int(stop - start),
            }
        )
        mine["chains"] += int(stop - start)
        mine["nbytes"] += size
        mine["cost"] += int(cost[start:stop].sum())
    return {
        "format": "evofeed-plan",
        "version": 1,
        "snapshot": digest,
        "seed": seed,
        "epoch": epoch,
        "world_size": world_size,
        "ranks": ranks,
    }


def plan_bytes(plan: dict[str, Any]) -> bytes:
    """The plan's one spelling: the same wherever it is computed."""
    return canonical_json(plan)


def _key(digest: str, seed: int, epoch: int, name: str) -> bytes:
    return hashlib.sha256(f"{digest}\0{seed}\0{epoch}\0{name}".encode()).digest()


def _integers(table: pa.Table, name: str) -> np.ndarray:
    return np.asarray(table[name].to_numpy()).astype(np.int64)

"""Plans cut every chain once, evenly, the same way everywhere."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evofeed.store.plan import plan_bytes, shard_plan


def make_index(chains: int, shards: int, seed: int) -> pa.Table:
    """Index rows of chains laid end to end in shards, in random row order."""
    rng = np.random.default_rng(seed)
    shard = np.sort(rng.integers(0, shards, chains))
    nbytes = rng.integers(1, 50, chains) * 8
    offset = np.zeros(chains, np.int64)
    for i in range(1, chains):
        offset[i] = offset[i - 1] + nbytes[i - 1] if shard[i] == shard[i - 1] else 0
    mixed = rng.permutation(chains)
    names = [f"{hashlib.sha256(str(s).encode()).hexdigest()}.arrow" for s in shard]
    return pa.table(
        {
            "shard": pa.array([names[i] for i in mixed], pa.utf8()).dictionary_encode(),
            "offset": offset[mixed],
            "nbytes": nbytes[mixed],
            "cost": rng.integers(0, 1000, chains)[mixed],
        }
    )


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
def test_every_chain_is_in_exactly_one_span_and_ranks_cost_alike(
    chains: int, shards: int, world_size: int, seed: int
) -> None:
    index = make_index(chains, shards, seed)
    plan = shard_plan(index, "d" * 64, world_size, seed=seed)
    rows = {(r["shard"], r["offset"]): r for r in index.to_pylist()}
    seen = []
    for rank in plan["ranks"]:
        for span in rank["spans"]:
            at, end = span["offset"], span["offset"] + span["nbytes"]
            count = 0
            while at < end:
                row = rows[span["shard"], at]
                seen.append((span["shard"], at))
                at, count = at + row["nbytes"], count + 1
            assert (at, count) == (end, span["chains"])
    assert sorted(seen) == sorted(rows)
    total, dearest = (
        sum(r["cost"] for r in rows.values()),
        max([0, *(r["cost"] for r in rows.values())]),
    )
    assert all(abs(rank["cost"] - total / world_size) <= dearest + 1 for rank in plan["ranks"])
    assert sum(rank["chains"] for rank in plan["ranks"]) == chains


def test_the_bytes_are_fixed_for_good() -> None:
    names = [f"{number:064x}.arrow" for number in range(3)]
    index = pa.table(
        {
            "shard": [names[i % 3] for i in range(30)],
            "offset": [i // 3 * 80 for i in range(30)],
            "nbytes": [80] * 30,
            "cost": [i * i % 17 for i in range(30)],
        }
    )
    data = plan_bytes(shard_plan(index, "d" * 64, 4, seed=1, epoch=2))
    backwards = index.take(list(range(29, -1, -1)))
    assert data == plan_bytes(shard_plan(backwards, "d" * 64, 4, seed=1, epoch=2))
    assert (
        hashlib.sha256(data).hexdigest()
        == "ece9d77fffa1e8c3978a783bc04b461f8744e889e11b512715f98aa2623b09f3"
    )


def test_another_epoch_reads_the_shards_in_another_order() -> None:
    index = make_index(200, 20, 0)
    orders = []
    for epoch in range(3):
        (rank,) = shard_plan(index, "d" * 64, 1, epoch=epoch)["ranks"]
        orders.append([span["shard"] for span in rank["spans"]])
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2]


def test_growing_the_world_moves_little() -> None:
    index = make_index(500, 10, 1)
    two, four = (shard_plan(index, "d" * 64, n)["ranks"] for n in (2, 4))
    first = {span["shard"] for rank in four[:2] for span in rank["spans"]}
    assert first == {span["shard"] for span in two[0]["spans"]}


@pytest.mark.parametrize("world_size", [0, -1, 65_537])
def test_a_world_nobody_has_is_refused(world_size: int) -> None:
    with pytest.raises(ValueError, match="world_size"):
        shard_plan(make_index(3, 1, 0), "d" * 64, world_size)

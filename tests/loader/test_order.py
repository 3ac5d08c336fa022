"""The order of an epoch: frequencies of chains, windows, balance, and its speed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import golden_files
from tests.loader.records import make_record, write_dataset
from tests.loader.streams import open_loader

from evofeed.base.errors import LoaderError
from evofeed.loader import LoaderConfig
from evofeed.loader.order import (
    accept_probability,
    eligible_rows,
    epoch_order,
    pass_order,
    window_order,
)
from evofeed.protein.residues import RESTYPES
from evofeed.store.index import INDEX_FIELDS

SAMPLERS = golden_files("data/**/sampler.json")


def index_of(rows: list[dict[str, object]]) -> pa.Table:
    names = {"num_res", "resolution", "max_aa_fraction", "num_unknown", "has_structure"}
    fields = [pa.field(n, t) for n, t in INDEX_FIELDS if n in names | {"cluster_size"}]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def row_of(sequence: str, resolution: float, cluster_size: int = -1) -> dict[str, object]:
    letters = Counter(sequence)
    return {
        "num_res": len(sequence),
        "resolution": resolution,
        "max_aa_fraction": max(letters.values()) / len(sequence),
        "num_unknown": sum(n for letter, n in letters.items() if letter not in RESTYPES),
        "has_structure": True,
        "cluster_size": cluster_size,
    }


@pytest.mark.parametrize("path", SAMPLERS, ids=lambda path: path.name)
def test_filters_and_probabilities_are_the_recorded_ones(path: Path) -> None:
    chains = json.loads(path.read_text())
    config = LoaderConfig.initial_training()
    compared = 0
    for chain in chains.values():
        index = index_of([row_of(chain["seq"], chain["resolution"] or 0.0)])
        try:
            passes = len(eligible_rows(index, config)) == 1
        except LoaderError:
            passes = False
        assert passes == chain["deterministic_train_filter"]
        for key, want in chain.items():
            if key.startswith("prob_cluster_"):
                text = key.removeprefix("prob_cluster_")
                size = -1 if text == "None" else int(text)
                index = index_of([row_of(chain["seq"], 1.0, size)])
                assert accept_probability(index)[0] == pytest.approx(want, rel=1e-12)
                compared += 1
    assert compared >= len(chains) > 0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"resolution": 9.5}, "resolution over 9.0: 1"),
        ({"max_aa_fraction": 0.81}, "more than 0.8 of one amino acid: 1"),
        ({"num_unknown": 1}, "unknown residues: 1"),
        ({"has_structure": False}, "no structure: 1"),
    ],
)
def test_each_filter_takes_what_it_should(changes: dict[str, object], reason: str) -> None:
    index = index_of([row_of("ARNDCQEGH", 2.0) | changes])
    with pytest.raises(LoaderError, match=reason):
        eligible_rows(index, LoaderConfig.initial_training())


@settings(deadline=None)
@given(st.integers(1, 300), st.none() | st.integers(1, 320), st.integers(0, 2**40))
def test_a_pass_is_a_permutation_of_windows_whose_neighbours_stay_together(
    count: int, window: int | None, seed: int
) -> None:
    order = pass_order(count, None, seed, seed % 10, 0, 0, window)
    assert sorted(order.tolist()) == list(range(count))
    if window:
        windows = [number for number, _ in itertools.groupby(order // window)]
        assert len(windows) == len(set(windows)) == -(-count // window)
    assert pass_order(count, None, seed, 0, 0, 0, 0).tolist() == list(range(count))


def test_a_window_reads_one_shard_after_another(tmp_path: Path) -> None:
    records = [make_record(f"w{i * 7 % 24:02}_A", 60, 300, 0) for i in range(24)]  # not by name
    dataset = write_dataset(tmp_path / "d", records)
    shards = dataset.index["shard"].to_pylist()
    largest = max(Counter(shards).values())
    assert len(set(shards)) >= 4
    assert shards != sorted(shards)
    config = LoaderConfig(crop_size=8, shuffle_window=1)
    loader = open_loader(dataset, config.replace(shuffle_window=largest))
    read = [shards[loader.planner.sample(0, position).row] for position in range(24)]
    fetched = lru_cache(2)(lambda shard: shard)  # as a cache of two shards fetches them
    for shard in read:
        fetched(shard)
    assert fetched.cache_info().misses <= 2 * len(set(shards)), "it lies in two windows"
    loader = open_loader(dataset, config.replace(shuffle_window=0))
    rows = [loader.planner.sample(0, position).row for position in range(24)]
    assert rows == list(range(24))


def test_windows_and_their_chains_come_in_every_order() -> None:
    orders = [pass_order(6, None, seed, 0, 0, 0, 3).tolist() for seed in range(2000)]
    firsts = np.bincount([order[0] for order in orders], minlength=6)
    assert abs(firsts - 2000 / 6).max() < 5 * np.sqrt(2000 / 6)
    assert len({tuple(order) for order in orders}) == 2 * 6 * 6
    half = pass_order(6, np.full(6, 0.5), 1, 0, 0, 0, 3)
    assert set(half) == set(pass_order(6, np.full(6, 0.5), 1, 0, 0, 0))  # who is accepted stays


def test_one_chain_may_be_read_forever_but_a_weight_that_accepts_nobody_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("evofeed.loader.order._MAX_PASSES", 100)
    _, chain = epoch_order([1], [None], [1.0], seed=0, epoch=0, length=120)
    assert chain.tolist() == [0] * 120
    with pytest.raises(LoaderError, match="weighted=False"):
        epoch_order([2], [np.full(2, 1e-9)], [1.0], seed=0, epoch=0, length=1)


def test_an_epoch_is_filled_up_or_cut_to_whole_steps(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "d", [make_record(f"e{i}_A", 20, 9, 0) for i in range(7)])
    config = LoaderConfig(crop_size=8, global_batch_size=3)
    lengths = {
        drop: len(open_loader(dataset, config.replace(drop_last=drop))) for drop in (False, True)
    }
    assert lengths == {False: 9, True: 6}
    with pytest.raises(LoaderError, match="drop_last"):
        open_loader(dataset, config.replace(drop_last=True, global_batch_size=8))


def test_chains_are_accepted_as_often_as_their_probability_says() -> None:
    probability = np.array([1.0, 0.5, 0.1, 0.01])
    passes = 5_000
    counts = np.zeros(4)
    for number in range(passes):
        counts[pass_order(4, probability, 7, 0, 0, number)] += 1
    spread = np.sqrt(passes * probability * (1 - probability)) + 1e-9
    assert np.all(np.abs(counts - passes * probability) <= 4 * spread)


def test_a_mixture_has_the_shares_asked_for_and_depends_on_nothing_else() -> None:
    counts, none = [50, 1000], [None, None]
    which, chain = epoch_order(counts, none, [0.25, 0.75], seed=1, epoch=2, length=40_000)
    share = (which == 0).mean()
    assert abs(share - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 40_000)
    for dataset, count in enumerate(counts):
        mine = chain[which == dataset]
        assert mine.max() < count
        times = np.bincount(mine, minlength=count)
        assert times.max() - times.min() <= 1  # every chain once a pass
    again = epoch_order(counts, none, [0.25, 0.75], seed=1, epoch=2, length=40_000)
    assert np.array_equal(again[0], which)
    assert np.array_equal(again[1], chain)


def test_chains_can_be_chosen_by_release_date_and_by_name() -> None:
    rows = [
        row_of("ARNDCQEGH", 2.0) | {"chain_id": f"{i}_A", "release_date": date}
        for i, date in enumerate(["2001-02-03", "2018-04-30", "2018-05-01", ""])
    ]
    schema = pa.schema(
        [*index_of([]).schema, pa.field("chain_id", pa.utf8()), pa.field("release_date", pa.utf8())]
    )
    index = pa.Table.from_pylist(rows, schema=schema)
    config = LoaderConfig()
    assert eligible_rows(index, config.replace(released_until="2018-04-30")).tolist() == [0, 1]
    assert eligible_rows(index, config.replace(released_from="2018-04-30")).tolist() == [1, 2]
    assert eligible_rows(index, config.replace(chains=("3_A", "0_A"))).tolist() == [0, 3]
    assert eligible_rows(index, config).tolist() == [0, 1, 2, 3]
    with pytest.raises(LoaderError, match=r"release date: 4, not 9_A: 4\)"):
        eligible_rows(index, config.replace(released_from="2030-01-01", chains=("9_A",)))


def test_the_order_never_changes_between_versions() -> None:
    # Saved states name positions: another order would resume another run.
    assert pass_order(10, None, 0, 0, 0, 0).tolist() == ORDER_10
    assert pass_order(10, np.full(10, 0.5), 1, 2, 3, 4).tolist() == ORDER_HALF


ORDER_10 = [3, 0, 8, 6, 4, 9, 5, 1, 7, 2]
ORDER_HALF = [9, 2, 3, 5, 8, 1]


def test_steps_of_a_window_hold_neighbours_in_cost_in_no_order_of_their_own() -> None:
    costs = np.random.default_rng(0).permutation(40)
    orders = [window_order(costs, 4, key) for key in range(20)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(40))
        steps = costs[order].reshape(10, 4)
        assert ((steps[:, 0] - steps[:, 3]) == 3).all()
    firsts = {int(costs[order][0]) for order in orders}
    assert len(firsts) > 5


def test_a_balanced_window_is_the_same_for_any_number_of_ranks(tmp_path: Path) -> None:
    world = 8
    records = [make_record(f"w{i:02}_A", 10 + 7 * i, 20, 0) for i in range(20)]
    dataset = write_dataset(tmp_path / "d", records)
    config = LoaderConfig(
        crop_size=8, global_batch_size=8, epoch_len=40, balance=True, balance_steps=3
    )
    steps = {}
    for ranks in (1, world):
        planners = [
            open_loader(dataset, config, rank=rank, world_size=ranks).planner
            for rank in range(ranks)
        ]
        streams = [planner.batches(0, 0) for planner in planners]
        steps[ranks] = [
            [plan.samples[0] for plan in batches]
            for batches in itertools.islice(zip(*streams, strict=False), 40 // ranks)
        ]
    flat = {
        ranks: [sample for step in batches for sample in step] for ranks, batches in steps.items()
    }
    assert flat[1] == flat[world]
    assert len({sample.position for sample in flat[1]}) == 40
    costs = np.array([planners[0].catalogs[0].cost[sample.row] for sample in flat[1]])
    window = np.array(sorted(costs[:24].reshape(3, 8).tolist(), key=min))  # of three steps
    assert (window[:-1].max(1) <= window[1:].min(1)).all()

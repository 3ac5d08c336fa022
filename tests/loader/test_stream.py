"""The stream of batches: the same bytes for any threads, ranks and restarts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from tests.loader.streams import CONFIG, open_loader, sample_digests

from evofeed.base.errors import CannotResume
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

pytestmark = pytest.mark.slow


def stream(dataset: Dataset, world: int, batch_size: int = 1, **options: Any) -> list[str]:
    """The samples of an epoch in order of position, collected from all ranks."""
    config = CONFIG.replace(batch_size=batch_size)
    ranks = []
    for rank in range(world):
        with open_loader(dataset, config, rank=rank, world_size=world, **options) as loader:
            ranks.append(sample_digests(loader))
    order = []
    for step in range(len(ranks[0]) // batch_size):
        for rank in ranks:
            order += rank[step * batch_size : (step + 1) * batch_size]
    return order


def test_batch_size_and_threads_change_nothing(dataset: Dataset, reference: list[str]) -> None:
    assert stream(dataset, 1, 4, num_threads=1, prefetch=1, ready=1) == reference
    assert stream(dataset, 2, 3, num_threads=7, prefetch=20) == reference


def test_another_seed_or_epoch_gives_other_samples(dataset: Dataset, reference: list[str]) -> None:
    with open_loader(dataset, seed=1) as loader:
        assert not set(sample_digests(loader)) & set(reference)
    with open_loader(dataset) as loader:
        assert sample_digests(loader, 1) == reference[:1]
        assert loader.epoch == 0
        assert sample_digests(loader) == reference[1:]
        assert loader.epoch == 1  # whose turn it is now
        assert loader.state_dict()["epoch"] == 0
        assert not set(sample_digests(loader)) & set(reference)
        assert loader.epoch == 2


def test_a_state_of_other_data_or_settings_is_refused(dataset: Dataset) -> None:
    state = open_loader(dataset).state_dict()
    for name, other in (
        ("seed", 9),
        ("config", "0"),
        ("snapshots", ["0"]),
        ("global_batch_size", 5),
        ("version", 99),
    ):
        with pytest.raises(CannotResume, match=name.split("_")[0]):
            open_loader(dataset).load_state_dict({**state, name: other})
    with pytest.raises(CannotResume, match="world size"):
        open_loader(dataset, world_size=3).load_state_dict({**state, "consumed": 2})


def test_a_state_of_other_shares_of_a_mixture_is_refused(dataset: Dataset) -> None:
    def mixture(*shares: float) -> FeatureLoader:
        mixed = [(dataset, float(share)) for share in shares]
        return FeatureLoader(mixed, CONFIG, device="cpu", reader="thread")

    state = json.loads(json.dumps(mixture(1, 3).state_dict()))
    mixture(1, 3).load_state_dict(state)
    with pytest.raises(CannotResume, match=r"weights was \[1.0, 3.0\] and is now \[3.0, 1.0\]"):
        mixture(3, 1).load_state_dict(state)
    for shares in ((0, 0), (-1, 2), (float("nan"), 1), (float("inf"), 1), ()):
        with pytest.raises(ValueError, match="shares of datasets"):
            mixture(*shares)
    with mixture(0, 1) as loader:
        assert {plan.dataset for plan in map(loader.planner.sample, [0] * 24, range(24))} == {1}


def test_chosen_chains_that_are_left_out_are_reported(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    config = CONFIG.replace(chains=("c001_A", "c002_A"))
    open_loader(dataset, config)
    assert not caplog.records
    open_loader(dataset, config.replace(chains=("c001_A", "nobody_A", "c002_A")))
    (warning,) = caplog.records
    assert "1 of 3 chosen chains are left out" in warning.getMessage()
    assert "nobody_A" in warning.getMessage()


def test_ranks_that_do_not_divide_the_step_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="global_batch_size 12"):
        open_loader(dataset, world_size=5)
    with pytest.raises(ValueError, match="rank 2"):
        open_loader(dataset, rank=2, world_size=2)


def test_whole_chains_come_out_uncropped(dataset: Dataset) -> None:
    config = LoaderConfig.prediction(max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=1)
    with open_loader(dataset, config) as loader:
        lengths = [int(batch["seq_length"]) for batch in loader]
        assert sorted(lengths) == sorted(dataset.index["num_res"].to_pylist())
    with open_loader(dataset, config) as loader:
        for batch in loader:
            assert batch["aatype"].shape == (1, int(batch["seq_length"]))
            assert batch["msa_feat"].shape[0] == 2
            assert torch.equal(batch["seq_mask"], torch.ones_like(batch["seq_mask"]))


def test_all_ranks_and_passes_of_a_step_run_the_same_recycles(dataset: Dataset) -> None:
    world, batch_size = 2, 3
    config = CONFIG.replace(batch_size=batch_size, max_recycling_iters=3, epoch_len=48)
    ranks = [open_loader(dataset, config, rank=rank, world_size=world) for rank in range(world)]
    first, other = (
        [plan.recycles for plan in itertools.islice(loader.planner.batches(0, 0), 8)]
        for loader in ranks
    )
    assert first == other  # else the ranks of a step wait or hang
    by_step = [set(first[i : i + 2]) for i in range(0, 8, 2)]  # two passes of three by two ranks
    assert all(len(values) == 1 for values in by_step)
    assert len(set.union(*by_step)) > 1  # they are drawn again for each step
    with ranks[0] as loader:
        assert [len(batch["msa_feat"]) for batch in loader] == first

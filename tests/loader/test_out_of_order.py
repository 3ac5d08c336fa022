"""`in_order=False`: batches of an optimiser step come as they are ready, with the same samples."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.loader.records import small_dataset
from tests.loader.storages import read_of, watched
from tests.loader.streams import open_loader

from evofeed.base.errors import CannotResume
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=1,
    global_batch_size=6, epoch_len=24,
)  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("late"), 24)


@pytest.fixture
def delayed(dataset: Dataset) -> tuple[Dataset, threading.Event]:
    """The dataset with the first chain of the first step delayed until the event is set."""
    first = read_of(dataset, loader_of(dataset).planner.sample(0, 0).row)
    let = threading.Event()

    def before(key: str, offset: int, number: int) -> None:
        assert (key, offset) != first or let.wait(300)

    return watched(dataset, before), let


def loader_of(dataset: Dataset, **options: Any) -> FeatureLoader:
    return open_loader(dataset, CONFIG, ready=1, prefetch=16, **options)


def take(loader: FeatureLoader, count: int, let: threading.Event | None = None) -> list[int]:
    """Keys of batches in the order they come; the delayed one is released after five of them."""
    out = []
    for batch in loader:
        out.append(int(batch["true_msa"].sum() * 1000 + batch["aatype"].sum()))
        if let and len(out) == min(count, 5):
            let.set()
        if len(out) == count:
            break
    return out


def test_the_late_one_comes_last_and_every_step_holds_what_it_should(
    dataset: Dataset, delayed: tuple[Dataset, threading.Event]
) -> None:
    with loader_of(dataset) as loader:
        want = take(loader, 24)
        assert loader.stats()["batches_out_of_order"] == 0
    with loader_of(delayed[0], in_order=False) as loader:
        got = take(loader, 24, delayed[1])
        assert loader.stats()["batches_out_of_order"] >= 5
        assert loader.state_dict()["consumed"] == 24
    assert got[5] == want[0]
    steps = [slice(first, first + 6) for first in range(0, 24, 6)]
    assert all(sorted(got[step]) == sorted(want[step]) for step in steps)


@pytest.mark.parametrize("stop", [2, 5, 6])
def test_a_state_from_the_middle_of_such_a_step_brings_the_rest(
    dataset: Dataset, delayed: tuple[Dataset, threading.Event], stop: int
) -> None:
    with loader_of(dataset) as loader:
        want = take(loader, 12)
    with loader_of(delayed[0], in_order=False) as loader:
        got = take(loader, stop, delayed[1])
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(dataset) as loader:
        loader.load_state_dict(state)
        got += take(loader, 12 - stop)
    assert sorted(got[:6]) == sorted(want[:6])
    assert sorted(got[6:]) == sorted(want[6:])
    if stop < 6:
        other = loader_of(dataset, world_size=2)
        with pytest.raises(CannotResume):
            other.load_state_dict(state)

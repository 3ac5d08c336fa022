"""Out of order: within an optimiser step whatever is ready first, and nothing else changes."""

from __future__ import annotations

import json
import threading

import pytest
from tests.loader.records import small_dataset
from tests.loader.storages import Watched, read_of

from evofeed.base.errors import CannotResume
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=1,
    global_batch_size=6, epoch_len=24,
)  # fmt: skip


class LateStorage(Watched):
    """One chain comes only when it is let."""

    def __init__(self, root: str, late: tuple[str, int]) -> None:
        super().__init__(root, self.wait)
        self.late, self.let = late, threading.Event()

    def wait(self, key: str, offset: int, number: int) -> None:
        assert (key, offset) != self.late or self.let.wait(300)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("late"), 24)


@pytest.fixture
def late(dataset: Dataset) -> Dataset:
    """The same data; the first chain of the first step comes late."""
    first = open_loader(dataset).planner.sample(0, 0).row
    storage = LateStorage(dataset.uri, read_of(dataset, first))
    return Dataset(storage, dataset.digest, dataset.manifest, dataset.index)


def open_loader(dataset: Dataset, *, in_order: bool = True, world: int = 1) -> FeatureLoader:
    return FeatureLoader(
        dataset, CONFIG, device="cpu", reader="thread", ready=1, in_order=in_order, world_size=world
    )


def take(loader: FeatureLoader, count: int) -> list[int]:
    """What tells batches apart, as they come; the late one may come after five of them."""
    out = []
    for batch in loader:
        out.append(int(batch["true_msa"].sum() * 1000 + batch["aatype"].sum()))
        storage = loader._datasets[0].storage
        if isinstance(storage, LateStorage) and len(out) == min(count, 5):
            storage.let.set()
        if len(out) == count:
            break
    return out


def test_the_late_one_comes_last_and_every_step_holds_what_it_should(
    dataset: Dataset, late: Dataset
) -> None:
    with open_loader(dataset) as loader:
        want = take(loader, 24)
        assert loader.stats()["batches_out_of_order"] == 0
    with open_loader(late, in_order=False) as loader:
        got = take(loader, 24)
        assert loader.stats()["batches_out_of_order"] >= 5
        assert loader.state_dict()["consumed"] == 24
    assert got[5] == want[0]
    steps = [slice(first, first + 6) for first in range(0, 24, 6)]
    assert all(sorted(got[step]) == sorted(want[step]) for step in steps)


@pytest.mark.parametrize("stop", [2, 5, 6])
def test_a_state_from_the_middle_of_such_a_step_brings_the_rest(
    dataset: Dataset, late: Dataset, stop: int
) -> None:
    with open_loader(dataset) as loader:
        want = take(loader, 12)
    with open_loader(late, in_order=False) as loader:
        got = take(loader, stop)
        state = json.loads(json.dumps(loader.state_dict()))
    with open_loader(dataset) as loader:
        loader.load_state_dict(state)
        got += take(loader, 12 - stop)
    assert sorted(got[:6]) == sorted(want[:6])
    assert sorted(got[6:]) == sorted(want[6:])
    if stop < 6:
        other = open_loader(dataset, world=2)
        with pytest.raises(CannotResume):
            other.load_state_dict(state)

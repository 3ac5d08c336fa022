"""Scarce shared memory: the same batches, or an error with the reason."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.loader.records import small_dataset
from tests.loader.storages import read_of, watched
from tests.loader.streams import CONFIG, open_loader, sample_digests

from evofeed.base.errors import LoaderError, ShardCorrupt
from evofeed.loader import FeatureLoader
from evofeed.loader.arena import HEADER_NBYTES
from evofeed.loader.read_chain import slot_nbytes
from evofeed.store import Dataset

SMALL = CONFIG.replace(
    crop_size=4,
    max_msa_clusters=2,
    max_extra_msa=2,
    max_templates=0,
    max_recycling_iters=0,
    supervised=False,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("room") / "d", 24)


def largest_slot(dataset: Dataset) -> int:
    catalog = open_loader(dataset)._catalogs[0]
    locations = [catalog.location(int(row)) for row in catalog.rows]
    largest = catalog.location(catalog.largest())
    assert max(slot_nbytes(location, True) for location in locations) == slot_nbytes(largest, True)
    return max(slot_nbytes(location, False) for location in locations)


@contextmanager
def closed_if_it_hangs(loader: FeatureLoader) -> Iterator[FeatureLoader]:
    """A loader that waits forever fails after two minutes."""
    guard = threading.Timer(120, loader.close)
    guard.start()
    try:
        with loader:
            yield loader
    finally:
        guard.cancel()


def test_a_batch_that_never_fits_is_an_error(dataset: Dataset) -> None:
    room = 2 * largest_slot(dataset) + 8192
    loader = open_loader(dataset, SMALL.replace(batch_size=12), arena_nbytes=room)
    with (
        closed_if_it_hangs(loader),
        pytest.raises(LoaderError, match=r"batch of 12 samples does not fit.*raise arena_nbytes"),
    ):
        list(loader)


def test_there_is_room_for_any_batch(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_loader(dataset, SMALL) as loader:
        want = sample_digests(loader)
    monkeypatch.setattr("evofeed.loader.feature_loader._ARENA_NBYTES", (0, 0))
    with closed_if_it_hangs(open_loader(dataset, SMALL.replace(batch_size=12))) as loader:
        assert loader._arena_nbytes >= 12 * largest_slot(dataset) + HEADER_NBYTES
        assert sample_digests(loader) == want


def test_many_bad_chains_in_little_room_lock_up_nothing(dataset: Dataset) -> None:
    """Substitutes are allocated out of order and leave gaps that no other sample fits into."""
    rows = open_loader(dataset)._catalogs[0].rows.tolist()
    bad = {read_of(dataset, row) for row in random.Random(3).sample(rows, 14)}

    def before(key: str, offset: int, number: int) -> None:
        if (key, offset) in bad:
            raise ShardCorrupt("of all things")

    damaged = watched(dataset, before)
    config = SMALL.replace(epoch_len=48)
    with open_loader(damaged, config) as loader:
        want = sample_digests(loader)
        assert len(loader.stats()["bad_chains"]) > 7
    tight = 5 * largest_slot(dataset) + 5 * 512
    config = config.replace(batch_size=4)
    for prefetch in (1, 24):
        loader = open_loader(damaged, config, arena_nbytes=tight, prefetch=prefetch)
        with closed_if_it_hangs(loader):
            assert sample_digests(loader) == want

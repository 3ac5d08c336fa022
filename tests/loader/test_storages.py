"""Data that is far away, slow, or sometimes not there at all."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.loader.records import make_record, small_dataset, write_dataset
from tests.loader.storages import Before, Watched, read_of, watched

from evofeed.base.errors import StoreError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset
from evofeed.store.cache import Cache, CachedStorage
from evofeed.store.storage import Storage

CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=0, outage_seconds=36.0
)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path / "d", 8)


def ids_read(dataset: Dataset, config: LoaderConfig = CONFIG, **options: object) -> list[int]:
    with FeatureLoader(dataset, config, device="cpu", reader="thread", **options) as loader:
        lengths = [int(batch["aatype"].sum()) for batch in loader]
        lengths.append(loader.stats()["retried_reads"])
        lengths.append(len(loader.stats()["bad_chains"]))
    return lengths


def outage(first: int, last: int) -> Before:
    """Reads `first` to `last` are not answered."""

    def before(key: str, offset: int, number: int) -> None:
        if first <= number <= last:
            raise StoreError("gave up after 6 attempts: is the service up?", path=key)

    return before


def failing(where: tuple[str, int], error: Exception) -> Before:
    """Reads of one chain raise an error."""

    def before(key: str, offset: int, number: int) -> None:
        if (key, offset) == where:
            raise error

    return before


def test_an_outage_is_waited_out_and_costs_no_chain(dataset: Dataset) -> None:
    *want, none, _ = ids_read(dataset)
    *got, retried, bad = ids_read(watched(dataset, outage(1, 9)), prefetch=4)
    assert none == bad == 0
    assert retried == 9
    assert got == want


@pytest.mark.parametrize("cached", [False, True])
def test_an_outage_that_outlasts_many_tries_is_blamed_on_no_chain(
    tmp_path: Path, cached: bool
) -> None:
    """Not even while a cache still answers for some."""
    records = [make_record(f"c{number:03}_A", 20 + 3 * number, 30, 1) for number in range(8)]
    dataset = write_dataset(tmp_path / "d", records, shard_nbytes=1)
    *want, _, _ = ids_read(dataset)
    waiting = 2 if cached else 4  # chains that are asked for again and again, with a probe
    far: Storage = Watched(dataset.uri, outage(7, 6 + 6 * 2 * waiting))
    if cached:
        sizes = {shard.name: shard.nbytes for shard in dataset.manifest.shards}
        far = CachedStorage(far, Cache(folder=str(tmp_path / "cache")), sizes)
    away = Dataset(far, dataset.digest, dataset.manifest, dataset.index)
    *got, retried, bad = ids_read(away, prefetch=4)
    assert bad == 0
    assert retried > 4 * waiting
    assert got == want


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (StoreError("HTTP 500"), "HTTP 500"),
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (ZeroDivisionError("of all things"), "ZeroDivisionError: of all things"),
    ],
    ids=["refused while others are read", "bad sector", "an error that nobody foresaw"],
)
def test_a_chain_whose_reading_fails_is_replaced(
    dataset: Dataset, error: Exception, reported: str
) -> None:
    damaged = watched(dataset, failing(read_of(dataset, 3), error))
    with FeatureLoader(damaged, CONFIG, device="cpu", reader="thread") as loader:
        assert len(list(loader)) == 8
        (why,) = loader.stats()["bad_chains"]
    assert dataset.index["chain_id"][3].as_py() in why
    assert reported in why


def test_a_suspended_job_is_no_outage(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    *want, _, _ = ids_read(dataset)
    asleep = [0.0]

    def before(key: str, offset: int, number: int) -> None:
        if number == 5:  # everything stops for an hour, and then it fails
            asleep[0] = 3600.0
            raise StoreError("gave up after 6 attempts: is the service up?", path=key)

    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + asleep[0])
    monkeypatch.setattr("evofeed.loader.feeder.time", clock)
    *got, retried, bad = ids_read(watched(dataset, before), prefetch=1)
    assert (retried, bad) == (1, 0)
    assert got == want

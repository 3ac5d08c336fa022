"""Data that is far away, slow, or sometimes not there at all."""

from __future__ import annotations

import errno
import itertools
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.loader.records import make_record, small_dataset

from evofeed.base.errors import LoaderError, StoreError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.cache import Cache, CachedStorage
from evofeed.store.storage import LocalStorage, Storage

CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=0, outage_seconds=36.0
)


class FarStorage:
    """A local folder that behaves like a server with outages."""

    def __init__(self, root: str, fail: int, only: int | None = None) -> None:
        self.inner, self.fail, self.only = LocalStorage(root), fail, only
        self.uri = f"far://{root}"
        self.reads = itertools.count(1)  # threads that count together must not lose one

    def read(self, key: str) -> bytes:
        return self.inner.read(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if next(self.reads) <= self.fail and self.only is None:
            raise StoreError("gave up after 6 attempts: is the service up?", path=key)
        if self.only is not None and offset == self.only:
            raise StoreError("HTTP 500", path=key)
        self.inner.read_into(key, offset, out)

    def put(self, key: str, data: bytes) -> None: ...

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return False

    def files(self, prefix: str) -> list[object]:
        return []

    def delete(self, key: str) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path / "d", 8)


def ids_read(dataset: Dataset, config: LoaderConfig = CONFIG, **options: object) -> list[int]:
    with FeatureLoader(dataset, config, device="cpu", reader="thread", **options) as loader:
        lengths = [int(batch["aatype"].sum()) for batch in loader]
        lengths.append(loader.stats()["retried_reads"])
        lengths.append(len(loader.stats()["bad_chains"]))
    return lengths


def far(dataset: Dataset, fail: int, only: int | None = None) -> Dataset:
    storage = FarStorage(dataset.uri, fail, only)
    return Dataset(storage, dataset.digest, dataset.manifest, dataset.index)


def test_an_outage_is_waited_out_and_costs_no_chain(dataset: Dataset) -> None:
    *want, none, _ = ids_read(dataset)
    *got, retried, bad = ids_read(far(dataset, 9), prefetch=4)
    assert none == bad == 0
    assert retried == 9
    assert got == want


class OutageInTheMiddle(FarStorage):
    """Answers for a while, then for nobody during some reads, then again."""

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if 6 < next(self.reads) <= 6 + self.fail:
            raise StoreError("gave up after 6 attempts: is the service up?", path=key)
        self.inner.read_into(key, offset, out)


@pytest.mark.parametrize("cached", [False, True])
def test_an_outage_that_outlasts_many_tries_is_blamed_on_no_chain(
    tmp_path: Path, cached: bool
) -> None:
    """Not even while a cache still answers for some."""
    writer = DatasetWriter(str(tmp_path / "d"), shard_nbytes=1)
    for number in range(8):
        writer.add(make_record(f"c{number:03}_A", 20 + 3 * number, 30, 1))
    writer.commit()
    dataset = Dataset.open(str(tmp_path / "d"))
    *want, _, _ = ids_read(dataset)
    waiting = 2 if cached else 4  # chains that are asked for again and again, with a probe
    far: Storage = OutageInTheMiddle(dataset.uri, 6 * 2 * waiting)
    if cached:
        sizes = {shard.name: shard.nbytes for shard in dataset.manifest.shards}
        far = CachedStorage(far, Cache(folder=str(tmp_path / "cache")), sizes)
    away = Dataset(far, dataset.digest, dataset.manifest, dataset.index)
    *got, retried, bad = ids_read(away, prefetch=4)
    assert bad == 0
    assert retried > 4 * waiting
    assert got == want


def test_a_chain_that_fails_while_others_are_read_is_replaced(dataset: Dataset) -> None:
    place = FeatureLoader(dataset, CONFIG, device="cpu")._catalogs[0].place(3)
    *got, _, bad = ids_read(far(dataset, 0, place.offset + place.starts[0]))
    assert bad == 1
    assert len(got) == 8


class FailingStorage(LocalStorage):
    """Raises an error of Python's own where one chain begins: a bad sector, a bug, ..."""

    def __init__(self, root: str, offset: int, error: Exception) -> None:
        super().__init__(root)
        self.offset, self.error = offset, error

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if offset == self.offset:
            raise self.error
        super().read_into(key, offset, out)


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError(errno.EIO, "Input/output error"), "Input/output error"),
        (ZeroDivisionError("of all things"), "ZeroDivisionError: of all things"),
    ],
    ids=["bad sector", "an error that nobody foresaw"],
)
def test_a_chain_whose_reading_fails_is_replaced(
    dataset: Dataset, error: Exception, reported: str
) -> None:
    place = FeatureLoader(dataset, CONFIG, device="cpu")._catalogs[0].place(3)
    storage = FailingStorage(dataset.uri, place.offset + place.starts[0], error)
    damaged = Dataset(storage, dataset.digest, dataset.manifest, dataset.index)
    with FeatureLoader(damaged, CONFIG, device="cpu", reader="thread") as loader:
        assert len(list(loader)) == 8
        (why,) = loader.stats()["bad_chains"]
    assert place.chain_id in why
    assert reported in why


def test_a_storage_that_never_comes_back_is_given_up_with_its_own_words(dataset: Dataset) -> None:
    with pytest.raises(LoaderError, match="is the service up"):
        ids_read(far(dataset, 10**9), replace(CONFIG, outage_seconds=1.0))


class Suspended(FarStorage):
    """During one read everything stops for an hour, and then it fails."""

    later = 0.0

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        if next(self.reads) == self.fail:
            self.later = 3600.0
            raise StoreError("gave up after 6 attempts: is the service up?", path=key)
        self.inner.read_into(key, offset, out)


def test_a_suspended_job_is_no_outage(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    *want, _, _ = ids_read(dataset)
    storage = Suspended(dataset.uri, 5)
    clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + storage.later)
    monkeypatch.setattr("evofeed.loader.feeder.time", clock)
    far = Dataset(storage, dataset.digest, dataset.manifest, dataset.index)
    *got, retried, bad = ids_read(far, prefetch=1)
    assert (retried, bad) == (1, 0)
    assert got == want


def test_a_dataset_behind_a_service_is_read_like_a_local_one(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evofeed.store.http import HttpStorage

    local = LocalStorage(dataset.uri)
    failures: Counter[str] = Counter()  # of a chain: none, one or two, whoever reads it when

    def get(self: HttpStorage, key: str, headers: dict[str, str]) -> bytes:
        if "Range" not in headers:
            return local.read(key)
        if failures[headers["Range"]] < random.Random(headers["Range"]).randrange(3):
            failures[headers["Range"]] += 1
            raise StoreError("gave up after 6 attempts: is the service up?")
        first, last = (int(at) for at in headers["Range"].removeprefix("bytes=").split("-"))
        out = bytearray(last + 1 - first)
        local.read_into(key, first, memoryview(out))
        return bytes(out)

    monkeypatch.setattr(HttpStorage, "_get", get)
    storage = HttpStorage("http://127.0.0.1:1/v1/datasets/d")
    there = Dataset(storage, dataset.digest, dataset.manifest, dataset.index)
    *want, _, _ = ids_read(dataset)
    *got, retried, bad = ids_read(there)
    assert got == want
    assert bad == 0
    assert retried > 0

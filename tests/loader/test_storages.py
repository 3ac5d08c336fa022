"""Data that is far away, slow, or sometimes not there at all."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.loader.records import small_dataset
from tests.loader.storages import Before, read_of, watched

from evofeed.base.errors import StoreError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

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


def failing(where: tuple[str, int], error: Exception) -> Before:
    """Reads of one chain raise an error."""

    def before(key: str, offset: int, number: int) -> None:
        if (key, offset) == where:
            raise error

    return before


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

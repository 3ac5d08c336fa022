"""Training from far away: over HTTP and from a bucket, cached, with connections that die."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bucket import local_bucket
from tests.loader.folder_server import Answer, FolderServer, Span, soundly
from tests.loader.records import make_record, write_dataset
from torch import Tensor

from evofeed.base.errors import LoaderError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.catalog import ChainCatalog
from evofeed.store import Cache, Dataset
from evofeed.store.layout import COLUMN_NUMBER, HEADER_NBYTES

CONFIG = LoaderConfig(
    crop_size=8,
    max_msa_clusters=4,
    max_extra_msa=4,
    max_recycling_iters=0,
    epoch_len=20,
    outage_seconds=36.0,
)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Twelve chains, each in a shard of its own."""
    sizes = [(20 + 3 * number, 30 + 9 * number, number % 5) for number in range(12)]
    records = [make_record(f"c{number:03}_A", *size) for number, size in enumerate(sizes)]
    return write_dataset(tmp_path / "d", records, shard_nbytes=1)


class EverySeventhBreaks:
    """Every seventh range breaks off in its middle."""

    def __init__(self) -> None:
        self.ranges, self.broken = itertools.count(1), 0

    def __call__(self, key: str, span: Span | None, data: bytes) -> Answer:
        if span and next(self.ranges) % 7 == 0:
            self.broken += 1
            return 206, data[: len(data) // 2], len(data)
        return soundly(key, span, data)


def batches(
    dataset: Dataset, config: LoaderConfig = CONFIG, **options: Any
) -> list[dict[str, Tensor]]:
    with FeatureLoader(dataset, config, device="cpu", seed=4, **options) as loader:
        taken = list(loader)
        assert loader.stats()["bad_chains"] == []
    return taken


def batches_with_an_outage(
    dataset: Dataset, before: int, stop: Callable[[], object], start: Callable[[], object]
) -> list[dict[str, Tensor]]:
    """All batches of an epoch; after some the storage is away for a second, and no chain is bad."""
    starting = threading.Event()

    def start_again() -> None:
        starting.set()
        start()

    with FeatureLoader(dataset, CONFIG, device="cpu", seed=4, prefetch=2, ready=1) as loader:
        stream = iter(loader)
        got = list(itertools.islice(stream, before))
        stop()
        timer = threading.Timer(1.0, start_again)
        timer.start()
        got += list(stream)
        assert starting.is_set(), "nothing was needed of the storage that was away"
        timer.join()
        assert loader.stats()["bad_chains"] == []
    return got


def assert_equal(got: list[dict[str, Tensor]], want: list[dict[str, Tensor]]) -> None:
    for here, there in zip(got, want, strict=True):
        assert all(torch.equal(here[name], there[name]) for name in there)


def test_over_http_with_broken_connections_batches_are_the_local_ones(dataset: Dataset) -> None:
    breaking = EverySeventhBreaks()
    with FolderServer(dataset.uri, breaking) as server:
        assert_equal(batches(Dataset.open(server.uri)), batches(dataset))
    assert breaking.broken >= 2


def test_a_server_that_is_restarted_costs_no_sample(dataset: Dataset) -> None:
    with FolderServer(dataset.uri) as server:
        there = Dataset.open(server.uri)
        got = batches_with_an_outage(there, 3, server.stop, server.start)
    assert_equal(got, batches(dataset))


def test_a_shard_that_the_server_lacks_costs_its_chains_and_is_named(
    dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(dataset.uri, tmp_path / "thinner")
    gone = dataset.index["shard"][3].as_py()
    (tmp_path / "thinner" / "shards" / gone).unlink()
    with FolderServer(str(tmp_path / "thinner")) as server:
        there = Dataset.open(server.uri)
        with FeatureLoader(there, CONFIG, device="cpu", seed=4) as loader:
            assert len(list(loader)) == 20
            (why,) = loader.stats()["bad_chains"]
    assert why.startswith(dataset.index["chain_id"][3].as_py())
    assert f"{gone}: the service has no such file" in why
    (warning,) = caplog.records
    assert why in warning.getMessage()


def test_a_storage_that_never_answers_is_given_up_with_what_was_wrong(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = dataclasses.replace(CONFIG, outage_seconds=0.5)
    with FolderServer(dataset.uri) as server:
        there = Dataset.open(server.uri)
        server.answer = lambda key, span, data: (418, b"", 0)
        with pytest.raises(LoaderError, match=r"nothing could be read.*unexpected HTTP 418"):
            batches(there, impatient, reader="thread")
    warning = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warning) == 1
    assert "unexpected HTTP 418" in warning[0].getMessage()


def test_a_token_that_expires_is_reported_at_once_and_a_new_one_continues_with_the_next_batch(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOFEED_TOKEN", "first")
    want, options = batches(dataset), {"prefetch": 2, "ready": 1}
    with FolderServer(dataset.uri) as server:
        server.token = "first"
        there = Dataset.open(server.uri)
        with FeatureLoader(there, CONFIG, device="cpu", seed=4, **options) as loader:
            got = list(itertools.islice(loader, 3))
            server.token = "second"
            with pytest.raises(LoaderError, match=r"the token has expired.*put a token"):
                got.extend(loader)
            assert len(got) < len(want)
            monkeypatch.setenv("EVOFEED_TOKEN", "second")
            got += list(loader)
            assert loader.stats()["bad_chains"] == []
    assert_equal(got, want)


def test_a_shard_that_alone_is_forbidden_costs_its_chains_and_not_the_run(dataset: Dataset) -> None:
    locked = dataset.index["shard"][3].as_py()
    with FolderServer(dataset.uri) as server:
        there = Dataset.open(server.uri)
        server.answer = lambda key, span, data: (
            (403, b"", 0) if locked in key else soundly(key, span, data)
        )
        with FeatureLoader(there, CONFIG, device="cpu", seed=4, reader="thread") as loader:
            assert len(list(loader)) == 20
            (why,) = loader.stats()["bad_chains"]
    assert why.startswith(dataset.index["chain_id"][3].as_py())


def test_damage_in_a_cache_is_mended_from_the_remote(dataset: Dataset, tmp_path: Path) -> None:
    cache = Cache(folder=str(tmp_path / "cache"))
    want = batches(dataset)
    with FolderServer(dataset.uri) as server:
        there = Dataset.open(server.uri, cache=cache)
        assert_equal(batches(there), want)
        catalog = ChainCatalog(there.index, 0, CONFIG)
        for row in catalog.rows[::2]:
            place = catalog.place(int(row))
            path = tmp_path / "cache" / place.key
            data = bytearray(path.read_bytes())
            data[place.offset + place.starts[COLUMN_NUMBER["msa"]] + HEADER_NBYTES] ^= 1
            path.write_bytes(data)
        assert_equal(batches(there), want)
        for path in (tmp_path / "cache").rglob("*.arrow"):
            assert path.read_bytes() == (Path(dataset.uri) / "shards" / path.name).read_bytes()


def test_a_bucket_that_goes_and_comes_back_costs_no_sample(dataset: Dataset) -> None:
    want = batches(dataset)
    with local_bucket() as bucket:
        there = Dataset.open(bucket.fill(Path(dataset.uri)))
        got = batches_with_an_outage(there, 5, bucket.go_away, bucket.come_back)
    assert_equal(got, want)

"""Training over HTTP and from a bucket, with a cache, and with connections that fail."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bucket import local_bucket
from tests.loader.records import make_record, write_dataset
from tests.store.test_http import Service, served
from torch import Tensor

from evofeed.base.errors import LoaderError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.catalog import ChainCatalog
from evofeed.store import Cache, Dataset
from evofeed.store.layout import COLUMN_NUMBER, HEADER_NBYTES

Fault = int | str | tuple[int, bytes] | None
"""The fault of a request, as in `Service`."""


class Toy:
    """A folder served at `uri`, with faults injected into its requests."""

    def __init__(self, root: str, fault: Callable[[Service], Fault]) -> None:
        self.fault, self.uri = fault, ""
        of_request = {"fault": lambda request: self.fault(request)}
        self.handler = type("Toy", (Service,), {"root": Path(root), "seen": [], **of_request})


@contextlib.contextmanager
def serving(root: str, fault: Callable[[Service], Fault] = lambda request: None) -> Iterator[Toy]:
    toy = Toy(root, fault)
    with served(toy.handler) as url:
        toy.uri = f"{url}/v1/datasets/toy"
        yield toy


CONFIG = LoaderConfig(
    crop_size=8,
    max_msa_clusters=4,
    max_extra_msa=4,
    max_recycling_iters=0,
    epoch_len=20,
    outage_seconds=36.0,
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Twelve chains, each in its own shard."""
    sizes = [(20 + 3 * number, 30 + 9 * number, number % 5) for number in range(12)]
    records = [make_record(f"c{number:03}_A", *size) for number, size in enumerate(sizes)]
    return write_dataset(tmp_path_factory.mktemp("remote"), records, shard_nbytes=1)


@pytest.fixture(scope="module")
def want(dataset: Dataset) -> list[dict[str, Tensor]]:
    """An epoch of the local folder."""
    return batches(dataset)


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
    """All batches of an epoch with an outage of a second; asserts that no chain is bad."""
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
    for batch, expected in zip(got, want, strict=True):
        assert all(torch.equal(batch[name], expected[name]) for name in expected)


def test_over_http_with_broken_connections_batches_are_the_local_ones(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    ranges = itertools.count(1)

    def every_seventh_breaks(request: Service) -> Fault:
        return "short" if request.headers["Range"] and next(ranges) % 7 == 0 else None

    with serving(dataset.uri, every_seventh_breaks) as server:
        assert_equal(batches(Dataset.open(server.uri)), want)
    assert next(ranges) > 14


def test_a_server_that_hangs_up_for_a_while_costs_no_sample(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    away = threading.Event()
    with serving(dataset.uri, lambda _: "hang up" if away.is_set() else None) as server:
        remote = Dataset.open(server.uri)
        got = batches_with_an_outage(remote, 3, away.set, away.clear)
    assert_equal(got, want)


@pytest.mark.parametrize(
    ("status", "said"), [(404, "the service has no such file"), (403, "HTTP 403")]
)
def test_a_shard_that_the_server_lacks_or_locks_costs_its_chains_and_is_named(
    dataset: Dataset, caplog: pytest.LogCaptureFixture, status: int, said: str
) -> None:
    gone = dataset.index["shard"][3].as_py()
    with serving(dataset.uri, lambda request: status if gone in request.path else None) as server:
        remote = Dataset.open(server.uri)
        with FeatureLoader(remote, CONFIG, device="cpu", seed=4) as loader:
            assert len(list(loader)) == 20
            (why,) = loader.stats()["bad_chains"]
    assert why.startswith(dataset.index["chain_id"][3].as_py())
    assert f"{gone}: {said}" in why
    *tries, warning = caplog.records
    assert bool(tries) == (status == 403)  # which may pass
    assert why in warning.getMessage()


def test_a_storage_that_never_answers_is_given_up_with_what_was_wrong(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = dataclasses.replace(CONFIG, outage_seconds=0.5)
    with serving(dataset.uri) as server:
        remote = Dataset.open(server.uri)
        server.fault = lambda request: 418
        with pytest.raises(LoaderError, match=r"nothing could be read.*unexpected HTTP 418"):
            batches(remote, impatient, reader="thread")
    warning = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warning) == 1
    assert "unexpected HTTP 418" in warning[0].getMessage()


def test_a_token_that_expires_is_reported_at_once_and_a_new_one_continues_with_the_next_batch(
    dataset: Dataset, want: list[dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOFEED_TOKEN", "first")
    options = {"prefetch": 2, "ready": 1}
    expired = 401, b'{"detail": "the token has expired"}'
    good = "first"

    def of_token(request: Service) -> Fault:
        return None if request.headers["Authorization"] == f"Bearer {good}" else expired

    with serving(dataset.uri, of_token) as server:
        remote = Dataset.open(server.uri)
        with FeatureLoader(remote, CONFIG, device="cpu", seed=4, **options) as loader:
            got = list(itertools.islice(loader, 3))
            good = "second"
            with pytest.raises(LoaderError, match=r"the token has expired.*put a token"):
                got.extend(loader)
            assert len(got) < len(want)
            monkeypatch.setenv("EVOFEED_TOKEN", "second")
            got += list(loader)
            assert loader.stats()["bad_chains"] == []
    assert_equal(got, want)


def test_damage_in_a_cache_is_mended_from_the_remote(
    dataset: Dataset, want: list[dict[str, Tensor]], tmp_path: Path
) -> None:
    cache = Cache(folder=str(tmp_path / "cache"))
    with serving(dataset.uri) as server:
        remote = Dataset.open(server.uri, cache=cache)
        assert_equal(batches(remote), want)
        catalog = ChainCatalog(remote.index, 0, CONFIG)
        for row in catalog.rows[::2]:
            location = catalog.location(int(row))
            path = tmp_path / "cache" / location.key
            data = bytearray(path.read_bytes())
            data[location.offset + location.starts[COLUMN_NUMBER["msa"]] + HEADER_NBYTES] ^= 1
            path.write_bytes(data)
        assert_equal(batches(remote), want)
        for path in (tmp_path / "cache").rglob("*.arrow"):
            assert path.read_bytes() == (Path(dataset.uri) / "shards" / path.name).read_bytes()


def test_a_bucket_that_goes_and_comes_back_costs_no_sample(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    with local_bucket() as bucket:
        remote = Dataset.open(bucket.fill(Path(dataset.uri)))
        got = batches_with_an_outage(remote, 5, bucket.go_away, bucket.come_back)
    assert_equal(got, want)

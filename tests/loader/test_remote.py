"""Training from far away: over HTTP and from a bucket, cached, with connections that die."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import itertools
import logging
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bucket import local_bucket
from tests.loader.records import make_record, write_dataset
from torch import Tensor

from evofeed.base.errors import LoaderError
from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.loader.catalog import ChainCatalog
from evofeed.store import Cache, Dataset
from evofeed.store.layout import COLUMN_NUMBER, HEADER_NBYTES

Span = tuple[int, int]
Answer = tuple[int, bytes, int]
"""Status, body, and how many bytes its header promises."""


def soundly(key: str, span: Span | None, data: bytes) -> Answer:
    """As it should be."""
    return 206 if span else 200, data, len(data)


class FolderServer:
    """Serves a folder from construction to `stop`.

    Args:
        root: the dataset's folder.
        answer: from the key, the asked range and its bytes.

    Attributes:
        token: what a request must bear to be answered; empty: nothing.
    """

    def __init__(
        self, root: str, answer: Callable[[str, Span | None, bytes], Answer] = soundly
    ) -> None:
        self.root, self.answer, self.port = Path(root), answer, 0
        self.token = ""
        self._place = socket.socket()
        self.start()

    @property
    def uri(self) -> str:
        """The dataset's address."""
        return f"http://127.0.0.1:{self.port}/v1/datasets/d"

    def start(self) -> None:
        """Serve (again), where it was."""
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                owner._serve(self)

            def log_message(self, *_: object) -> None: ...

        self._place.close()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._connections: list[http.server.BaseHTTPRequestHandler] = []
        self._thread.start()

    def _serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self._connections.append(request)
        if self.token and request.headers["Authorization"] != f"Bearer {self.token}":
            body = b'{"detail": "the token has expired"}'
            request.send_response(401)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body)
            return
        key = request.path.removeprefix("/v1/datasets/d/").replace("/index", "/index.arrow")
        path = self.root / key
        if key.startswith("snapshots/") and path.is_dir():
            path = path / "manifest.json"
        if not path.exists():
            request.send_error(404)
            return
        data, span = path.read_bytes(), None
        if asked := request.headers["Range"]:
            first, last = (int(at) for at in asked.removeprefix("bytes=").split("-"))
            data, span = data[first : last + 1], (first, last)
        status, body, promised = self.answer(key, span, data)
        request.send_response(status)
        request.send_header("Content-Length", str(promised))
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = len(body) != promised

    def stop(self) -> None:
        """Go away, and break off the connections that are kept open."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._place.close()
        self._place = socket.socket()  # bound and deaf: nobody else is given the port meanwhile
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", self.port))
        for request in self._connections:
            with contextlib.suppress(OSError):  # the other side hung up before
                request.connection.shutdown(socket.SHUT_RDWR)  # `close` alone waits for its reader

    def __enter__(self) -> FolderServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._place.close()


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
    """Twelve chains, each in a shard of its own."""
    sizes = [(20 + 3 * number, 30 + 9 * number, number % 5) for number in range(12)]
    records = [make_record(f"c{number:03}_A", *size) for number, size in enumerate(sizes)]
    return write_dataset(tmp_path_factory.mktemp("remote"), records, shard_nbytes=1)


@pytest.fixture(scope="module")
def want(dataset: Dataset) -> list[dict[str, Tensor]]:
    """An epoch of the folder itself."""
    return batches(dataset)


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


def test_over_http_with_broken_connections_batches_are_the_local_ones(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    breaking = EverySeventhBreaks()
    with FolderServer(dataset.uri, breaking) as server:
        assert_equal(batches(Dataset.open(server.uri)), want)
    assert breaking.broken >= 2


def test_a_server_that_is_restarted_costs_no_sample(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    with FolderServer(dataset.uri) as server:
        there = Dataset.open(server.uri)
        got = batches_with_an_outage(there, 3, server.stop, server.start)
    assert_equal(got, want)


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
    dataset: Dataset, want: list[dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOFEED_TOKEN", "first")
    options = {"prefetch": 2, "ready": 1}
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


def test_damage_in_a_cache_is_mended_from_the_remote(
    dataset: Dataset, want: list[dict[str, Tensor]], tmp_path: Path
) -> None:
    cache = Cache(folder=str(tmp_path / "cache"))
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


def test_a_bucket_that_goes_and_comes_back_costs_no_sample(
    dataset: Dataset, want: list[dict[str, Tensor]]
) -> None:
    with local_bucket() as bucket:
        there = Dataset.open(bucket.fill(Path(dataset.uri)))
        got = batches_with_an_outage(there, 5, bucket.go_away, bucket.come_back)
    assert_equal(got, want)

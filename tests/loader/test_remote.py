"""Training from far away: over HTTP and from a bucket, cached, with connections that die."""

from __future__ import annotations

import http.server
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.bucket import local_bucket
from tests.loader.records import small_dataset
from torch import Tensor

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Cache, Dataset

CONFIG = LoaderConfig(
    crop_size=8, max_msa_clusters=4, max_extra_msa=4, max_recycling_iters=0, epoch_len=20
)


class Handler(http.server.BaseHTTPRequestHandler):
    """A dataset's folder under the service's paths; every seventh range breaks off."""

    protocol_version = "HTTP/1.1"
    root: Path
    ranges = itertools.count(1)
    broken = 0

    def do_GET(self) -> None:
        key = self.path.removeprefix("/v1/datasets/d/").replace("/index", "/index.arrow")
        path = self.root / key
        if key.startswith("snapshots/") and path.is_dir():
            path = path / "manifest.json"
        if not path.exists():
            self.send_error(404)
            return
        data, status, breaks = path.read_bytes(), 200, False
        if span := self.headers["Range"]:
            first, last = (int(at) for at in span.removeprefix("bytes=").split("-"))
            data, status = data[first : last + 1], 206
            breaks = next(Handler.ranges) % 7 == 0
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if breaks:
            Handler.broken += 1
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path / "d", 12)


@pytest.fixture
def address(dataset: Dataset) -> Iterator[str]:
    Handler.root, Handler.broken = Path(dataset.uri), 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/datasets/d"
    server.shutdown()
    server.server_close()
    thread.join()


def batches(dataset: Dataset, count: int = 20) -> list[dict[str, Tensor]]:
    with FeatureLoader(dataset, CONFIG, device="cpu", seed=4) as loader:
        taken = list(itertools.islice(loader, count))
        assert loader.stats()["bad_chains"] == []
    return taken


def assert_equal(got: list[dict[str, Tensor]], want: list[dict[str, Tensor]]) -> None:
    for here, there in zip(got, want, strict=True):
        assert all(torch.equal(here[name], there[name]) for name in there)


def test_over_http_with_broken_connections_batches_are_the_local_ones(
    dataset: Dataset, address: str
) -> None:
    assert_equal(batches(Dataset.open(address)), batches(dataset))
    assert Handler.broken >= 2


def test_a_cache_smaller_than_the_dataset_keeps_its_cap(
    dataset: Dataset, address: str, tmp_path: Path
) -> None:
    sizes = [shard.nbytes for shard in dataset.manifest.shards]
    assert len(sizes) >= 3
    cap = max(sizes) * 2
    cache = Cache(folder=str(tmp_path / "cache"), max_nbytes=cap)
    want = batches(dataset)
    for _ in range(2):  # the second time with what the first one left
        assert_equal(batches(Dataset.open(address, cache=cache)), want)
        kept = [path.stat().st_size for path in (tmp_path / "cache").rglob("*.arrow")]
        assert kept
        assert sum(kept) <= cap


def test_a_bucket_that_goes_and_comes_back_costs_no_sample(dataset: Dataset) -> None:
    want = batches(dataset)
    with local_bucket() as bucket:
        there = Dataset.open(bucket.fill(Path(dataset.uri)))
        with FeatureLoader(there, CONFIG, device="cpu", seed=4, prefetch=2, ready=1) as loader:
            stream = iter(loader)
            got = list(itertools.islice(stream, 5))
            bucket.go_away()
            threading.Timer(1.0, bucket.come_back).start()
            got += list(stream)
            assert loader.stats()["bad_chains"] == []
    assert_equal(got, want)

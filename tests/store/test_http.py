"""Reading a dataset through the service's HTTP contract, from a server with bad days."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from tests.conftest import evofeed
from tests.store.records import assert_same, flip, published, random_record

from evofeed.base.errors import AccessDenied, DatasetMissing, ShardCorrupt, ShardMissing, StoreError
from evofeed.store import Dataset, DatasetWriter, copy_dataset, http_connection
from evofeed.store.http import HttpStorage


class Service(BaseHTTPRequestHandler):
    """The four GET routes over a folder; `faults` holds faults of the next requests."""

    protocol_version = "HTTP/1.1"
    root, faults, seen = None, [], []

    def do_GET(self):
        self.seen.append((self.path, self.headers.get("Range"), self.headers.get("Authorization")))
        fault = self.fault()
        if fault == "hang up":
            self.close_connection = True
            return None
        if isinstance(fault, int):
            return self.answer(fault, b"{}")
        if isinstance(fault, tuple):
            return self.answer(*fault)
        key = self.path.removeprefix("/v1/datasets/toy/")
        key = re.sub(r"^(snapshots/[0-9a-f]+)$", r"\1/manifest.json", key)
        path = self.root / re.sub(r"/index$", "/index.arrow", key)
        if not path.is_file() or key == self.path:
            return self.answer(404, b"{}")
        data, status = path.read_bytes(), 200
        if self.headers.get("Range"):
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            status, data = (416, b"") if first >= len(data) else (206, data[first : last + 1])
        if fault == "short":
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return None
        if fault == "cut":  # with the length of the shortened body
            data = data[: len(data) // 2]
        if fault == "flip":
            data = bytes([data[0] ^ 1]) + data[1:]
        return self.answer(status, data)

    def fault(self):
        """The fault of this request; None for a normal answer."""
        return self.faults.pop(0) if self.faults else None

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def served(handler):
    """The address of a server that answers with this handler."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def service(tmp_path):
    published(tmp_path, map(random_record, range(3)))
    handler = type("Toy", (Service,), {"root": tmp_path, "faults": [], "seen": []})
    with served(handler) as url:
        handler.url = f"{url}/v1/datasets/toy"
        yield handler


@pytest.fixture
def closing():
    opened = []

    def open_dataset(url, snapshot="main", token=None):
        storage = HttpStorage(url, token, first_wait=0.001)
        opened.append(Dataset.of(storage, snapshot))
        return opened[-1]

    yield open_dataset
    for dataset in opened:
        dataset.storage.close()


def test_a_token_may_come_from_the_environment_and_be_renewed_there(service, closing, monkeypatch):
    monkeypatch.setenv("EVOFEED_TOKEN", "hidden")
    dataset = closing(service.url)
    assert {auth for _, _, auth in service.seen} == {"Bearer hidden"}
    assert b"hidden" not in pickle.dumps(dataset)
    monkeypatch.setenv("EVOFEED_TOKEN", "newer\n")  # as read from a file
    dataset[0]
    assert service.seen[-1][2] == "Bearer newer"
    closing(service.url, token="secret")[0]
    assert service.seen[-1][2] == "Bearer secret"


@pytest.mark.parametrize("fault", ["hang up", "short", 503, 429, 500])
def test_passing_trouble_is_tried_again(service, closing, fault):
    dataset = closing(service.url)
    service.faults.extend([fault, fault])
    assert_same(dataset["chain1_A"], random_record(1))


def test_lasting_trouble_ends_with_one_clear_error(service, closing):
    dataset = closing(service.url)
    service.faults.extend([503] * http_connection.ATTEMPTS)
    with pytest.raises(StoreError, match="gave up after 6 attempts"):
        dataset[0]


def test_a_service_that_is_away_ends_with_one_clear_error(closing):
    with served(Service) as url:
        pass
    with pytest.raises(StoreError, match=r"gave up .*ConnectionRefused.*is the service up\?"):
        closing(f"{url}/v1/datasets/toy")


def test_wrong_bytes_are_never_believed(service, closing):
    dataset = closing(service.url)
    for fault, why in (("flip", "checksum"), ("cut", "truncated")):
        service.faults.append(fault)
        assert_same(dataset["chain2_A"], random_record(2))  # read again, and right
        service.faults.extend([fault, fault])
        with pytest.raises(ShardCorrupt, match=why) as caught:
            dataset["chain2_A"]
        assert caught.value.item == "chain2_A"
    service.faults.extend([None, "flip"])
    with pytest.raises(ShardCorrupt, match="manifest"):
        closing(service.url)


def test_many_chains_come_in_the_order_they_are_asked_for(service, closing):
    dataset = closing(service.url)
    ids = ["chain2_A", "chain0_A", "chain1_A", "chain0_A"]
    for seed, arrays in zip((2, 0, 1, 0), dataset.read(ids, ["msa"]), strict=True):
        assert np.array_equal(arrays["msa"], random_record(seed).msa)
    assert dataset.verify(deep=True) == []
    before = len(service.seen)
    assert dataset.verify() == [] and len(service.seen) == before + 1  # all of a shard at once
    service.faults.extend(["flip"] * 2)
    (fault,) = dataset.verify()
    assert fault.item == "chain0_A" and not service.faults
    (shard,) = (service.root / "shards").iterdir()
    os.truncate(shard, int(dataset.spans.offset[2]))
    (cut,) = dataset.verify()
    assert cut.item == "chain2_A" and "truncated" in cut.message


@pytest.mark.parametrize("length", [9, 1 << 20])
def test_a_whole_file_in_place_of_a_range_says_what_may_be_wrong(service, closing, length):
    dataset = closing(service.url)
    service.faults.append((200, bytes(length)))
    with pytest.raises(StoreError, match=r"shards/.*: it sends a full file .* `Range`\?"):
        dataset[0]
    assert_same(dataset["chain0_A"], random_record(0))


def test_what_the_service_lacks_is_missing(service, closing):
    for snapshot in ("nothing", "0" * 64):
        with pytest.raises(DatasetMissing):
            closing(service.url, snapshot=snapshot)
    dataset = closing(service.url)
    service.faults.append(404)
    with pytest.raises(ShardMissing):
        dataset[0]


@pytest.mark.parametrize("length", [10**15, None])
def test_an_answer_without_end_is_hung_up_on_before_it_fills_the_memory(
    service, closing, monkeypatch, length
):
    class Endless(Service):
        def do_GET(self):
            self.close_connection = True
            self.send_response(200)
            if length:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 16))

    monkeypatch.setattr(http_connection, "MAX_NBYTES", 1 << 22)
    with served(Endless) as url, pytest.raises(StoreError, match="sends more than 4194304 bytes"):
        closing(f"{url}/v1/datasets/toy")


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"])
def test_an_answer_that_drips_ends_with_one_clear_error(closing, monkeypatch, begun):
    class Dripping(Service):
        def do_GET(self):
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.wfile.write(begun)
                while not over.wait(0.02):
                    self.wfile.write(b"H")

    over = threading.Event()
    monkeypatch.setattr(http_connection, "TIMEOUT", 0.2)
    with served(Dripping) as url:
        try:
            with pytest.raises(StoreError, match=r"gave up.*only \d+ bytes in \d+ s") as caught:
                closing(f"{url}/v1/datasets/toy")
        finally:
            over.set()
    assert caught.value.path == f"{url}/v1/datasets/toy/refs/main"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"detail": "the token\\n has expired"}', r"HTTP 401 \(the token has expired\): put"),
        (b"<html>no entry</html>", "HTTP 401: put"),
        (b'["detail"]', "HTTP 401: put"),
        (b'{"detail": 7}', "HTTP 401: put"),
        (b"\xff", "HTTP 401: put"),
        (b"[" * 60_000, "HTTP 401: put"),
    ],
)
def test_a_refusal_says_why_and_where_the_token_belongs(service, closing, body, said):
    dataset = closing(service.url)
    service.faults.append((401, body))
    with pytest.raises(AccessDenied, match=said + ".*EVOFEED_TOKEN"):
        dataset[0]


def test_a_dataset_over_http_cannot_be_written(service, closing):
    with pytest.raises(StoreError, match="read-only"):
        DatasetWriter(service.url).storage.put("shards/x", b"")


def test_snapshots_and_copies_work_through_http(service, closing, tmp_path):
    dataset = closing(service.url)
    assert [snapshot.digest for snapshot in dataset.snapshots()] == [dataset.digest]
    listed = evofeed("snapshots", "ls", service.url, "--json").json
    assert [row["refs"] for row in listed] == [["main"]]
    copied = copy_dataset(service.url, tmp_path / "copy")
    assert copied.digest == dataset.digest
    (shard,) = (tmp_path / "copy" / "shards").iterdir()
    flip(shard, 1000)  # as `verify` advises, a backup repairs it
    assert len(Dataset.open(tmp_path / "copy").verify(deep=True)) > 0
    copy_dataset(service.url, tmp_path / "copy")
    assert Dataset.open(tmp_path / "copy").verify(deep=True) == []


def test_closing_closes_the_connections_of_all_threads_and_reading_on_opens_new_ones(service):
    with Dataset.open(service.url) as dataset, ThreadPoolExecutor(3) as pool:
        together = threading.Barrier(3)

        def read(seed):
            together.wait()
            return dataset[f"chain{seed}_A"]

        for seed, record in enumerate(pool.map(read, range(3))):
            assert_same(record, random_record(seed))
        sockets = [opened.connection.sock for opened in dataset.storage._http._open]
        assert len(sockets) == 4  # this thread's too
        dataset.close()
        assert all(socket.fileno() == -1 for socket in sockets)
        assert_same(dataset["chain1_A"], random_record(1))
        again = [opened.connection.sock for opened in dataset.storage._http._open]
    assert sum(socket is not None for socket in again) == 1
    assert all(socket is None or socket.fileno() == -1 for socket in again)

"""One set of promises for every kind of storage: local folder, S3, and HTTP for reading."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from tests.bucket import local_bucket
from tests.conftest import evofeed
from tests.store.records import assert_same, published, random_record
from tests.store.test_http import Service, served

from evofeed.base.errors import AccessDenied, DatasetMissing, RefConflict, ShardMissing, StoreError
from evofeed.store import (
    Dataset,
    DatasetWriter,
    ShardEntry,
    compact,
    copy_dataset,
    gc,
    merge,
    remove_chains,
    tag,
    write_shard,
)
from evofeed.store.opening import open_storage
from evofeed.synth import write_synthetic


@pytest.fixture(scope="module")
def s3_bucket():
    with local_bucket() as bucket:
        yield bucket.uri


@pytest.fixture(params=["folder", "s3"])
def uri(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "dataset")
    return f"{request.getfixturevalue('s3_bucket')}/{uuid.uuid4().hex}"


def test_bytes_put_are_bytes_read_whole_and_in_ranges(uri):
    storage = pickle.loads(pickle.dumps(open_storage(uri)))
    data = bytes(range(256)) * 10
    storage.put("shards/x.arrow", data)
    assert storage.read("shards/x.arrow") == data
    out = bytearray(100)
    storage.read_into("shards/x.arrow", 200, memoryview(out))
    assert out == data[200:300]
    storage.put("shards/x.arrow", b"new")
    assert storage.read("shards/x.arrow") == b"new"


def test_a_read_past_the_end_says_truncated(uri):
    storage = open_storage(uri)
    storage.put("shards/x.arrow", b"12345")
    for start in (3, 30):
        with pytest.raises(StoreError, match=r"x\.arrow"):
            storage.read_into("shards/x.arrow", start, memoryview(bytearray(10)))


def test_what_is_not_there_is_missing(uri):
    storage = open_storage(uri)
    with pytest.raises(ShardMissing):
        storage.read("shards/x.arrow")
    with pytest.raises(ShardMissing):
        storage.read_into("shards/x.arrow", 0, memoryview(bytearray(10)))
    storage.delete("shards/x.arrow")
    assert list(storage.files("shards/")) == []


def test_files_are_listed_in_key_order_with_size_and_age(uri):
    storage = open_storage(uri)
    for key in ("shards/b", "shards/a", "refs/main", "snapshots/ff/index.arrow"):
        storage.put(key, key.encode())
    assert [item.key for item in storage.files("shards/")] == ["shards/a", "shards/b"]
    (item,) = storage.files("snapshots/")
    assert item.nbytes == len(item.key) and item.modified > 1.7e9
    storage.delete("shards/a")
    assert [item.key for item in storage.files("shards/")] == ["shards/b"]


def test_swap_wins_only_against_what_it_has_seen(uri):
    storage = open_storage(uri)
    assert storage.swap("refs/main", None, b"1")
    assert not storage.swap("refs/main", None, b"2")
    assert not storage.swap("refs/main", b"0", b"2")
    assert storage.swap("refs/main", b"1", b"2")
    assert storage.read("refs/main") == b"2"
    assert not storage.swap("refs/other", b"1", b"2")


def _publish_together(
    uri: str, shards: list[ShardEntry], parent: str | None
) -> list[str | RefConflict]:
    """Results of several writers that publish on top of `parent` at the same moment."""
    barrier = threading.Barrier(len(shards))

    def publish(shard: ShardEntry) -> str | RefConflict:
        writer = DatasetWriter(uri)  # with a separate storage and connection
        writer.add_shard(shard)
        barrier.wait()
        try:
            return writer.commit(expect=parent).digest
        except RefConflict as error:
            return error

    with ThreadPoolExecutor(len(shards)) as pool:
        return list(pool.map(publish, shards))


def test_of_publishers_at_the_same_moment_one_wins_and_every_other_is_refused(uri):
    """Rounds of a race on one ref, each on top of the winner of the previous round."""
    parent = None
    for turn in range(2):
        shards = [write_shard(uri, [random_record(10 * turn + n)]) for n in range(3)]
        ends = _publish_together(uri, shards, parent)
        won = [end for end in ends if isinstance(end, str)]
        lost = [end for end in ends if isinstance(end, RefConflict)]
        assert (len(won), len(lost)) == (1, 2)
        dataset = Dataset.open(uri)
        assert (dataset.digest, dataset.manifest.parent) == (won[0], parent)
        assert dataset.verify() == []
        for error in lost:
            assert won[0][:12] in str(error), "says where the ref is now"
        parent = won[0]


def test_publishers_of_the_same_chains_at_the_same_moment_are_all_accepted(uri):
    """The second time they are there already, so no snapshot is made on top of them."""
    shard = write_shard(uri, [random_record(1)])
    first = _publish_together(uri, [shard] * 3, None)
    digest = Dataset.open(uri).digest
    assert first == [digest] * 3
    assert _publish_together(uri, [shard] * 3, digest) == [digest] * 3
    dataset = Dataset.open(uri)
    assert (dataset.digest, dataset.manifest.parent) == (digest, None)


def test_a_dataset_lives_the_same_life_wherever_it_lies(uri, tmp_path):
    writer = DatasetWriter(uri)
    writer.add_shard(write_shard(uri, [random_record(seed) for seed in (0, 1, 5)]))
    first = writer.commit(config={"a": 1}, cluster_sizes={"chain5_A": 9})
    remove_chains(uri, ["chain0_A", "chain1_A"])
    for name, records in (
        ("more", [random_record(2), random_record(40, chain_id="chain1_A")]),
        ("other", [random_record(3)]),
    ):
        published(tmp_path / name, records)
        merge(uri, str(tmp_path / name))
    tag(uri, "before")
    assert len(Dataset.open(uri).manifest.shards) == 3
    assert compact(uri).digest == compact(uri).digest
    dataset = Dataset.open(uri)
    assert dataset.index["cluster_size"].to_pylist() == [-1, -1, -1, 9]
    for name, seed in (("chain1_A", 40), ("chain2_A", 2), ("chain3_A", 3), ("chain5_A", 5)):
        assert_same(dataset[name], random_record(seed, chain_id=name))
    assert list(dataset) == ["chain1_A", "chain2_A", "chain3_A", "chain5_A"]
    assert len(dataset.manifest.shards) == 1 and "4 chains" in repr(dataset)
    snapshots = dataset.snapshots()
    assert len(snapshots) == 5 and snapshots[-1].digest == first.digest
    parents = [snapshot.manifest.parent for snapshot in snapshots]
    assert parents == [*(snapshot.digest for snapshot in snapshots[1:]), None]
    assert dataset.manifest.config == {"a": 1}
    assert dataset.diff("before").to_dict() == {"added": [], "removed": [], "changed": []}
    assert dataset.diff(first.digest).to_dict() == {
        "added": ["chain2_A", "chain3_A"], "removed": ["chain0_A"], "changed": ["chain1_A"],
    }  # fmt: skip
    with pytest.raises(RefConflict):
        tag(uri, "before", first.digest)
    copied = copy_dataset(uri, tmp_path / "copy")
    assert copied.digest == dataset.digest
    assert gc(uri, dry_run=False, grace=-1.0).removed == (), "history is kept unless it is given up"
    gc(uri, dry_run=False, grace=-1.0, keep_history=False)
    assert len(Dataset.open(uri).snapshots()) == 2  # main and the tag
    assert len({item.key.split("/")[1] for item in open_storage(uri).files("snapshots/")}) == 2
    for snapshot in ("main", "before"):
        assert Dataset.open(uri, snapshot).verify(deep=True) == []


def test_no_dataset_is_missing(uri):
    with pytest.raises(DatasetMissing, match="no ref 'main'"):
        Dataset.open(uri)


def test_a_forked_process_is_told_why_it_has_no_client(monkeypatch):
    """It waited for ever."""
    monkeypatch.setattr("evofeed.store.s3._client_pid", os.getppid())
    with pytest.raises(StoreError, match="does not survive a fork: start processes by 'spawn'"):
        open_storage("s3://bucket/x").read("refs/main")


def test_a_bucket_is_probed_before_its_first_swap_and_only_then(s3_bucket, monkeypatch):
    storage, probes = open_storage(f"{s3_bucket}/{uuid.uuid4().hex}"), []
    conditional = type(storage)._conditional

    def recorded(self, key, old, new):
        probes.append(key.startswith("probe/"))
        return conditional(self, key, old, new)

    monkeypatch.setattr(type(storage), "_conditional", recorded)
    assert storage.swap("refs/main", None, b"a") and storage.swap("refs/main", b"a", b"b")
    assert probes == [True, True, False, False]
    assert not list(storage.files("probe/"))


class Refusing(Service):
    """A bucket that answers every request with one status and one code."""

    status, code = 0, ""

    def do_GET(self):  # noqa: N802
        self.answer(self.status, f"<Error><Code>{self.code}</Code></Error>".encode())


@pytest.mark.parametrize(
    ("status", "code", "denied"),
    [
        (403, "AccessDenied", True),
        (401, "Unauthorized", True),
        (400, "ExpiredToken", True),
        (400, "InvalidRequest", False),
    ],
)
def test_a_bucket_that_denies_access_is_told_from_one_that_is_away(
    monkeypatch, status, code, denied
):
    handler = type("Bucket", (Refusing,), {"status": status, "code": code})
    with served(handler) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with closing(open_storage("s3://bucket/d")) as storage, pytest.raises(StoreError) as caught:
            storage.read_into("shards/x.arrow", 0, memoryview(bytearray(8)))
    assert isinstance(caught.value, AccessDenied) is denied
    assert ("renew" in caught.value.message) is denied
    assert code in caught.value.message


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("open", errno.EACCES, AccessDenied),
        ("open", errno.EMFILE, StoreError),
        ("preadv", errno.EIO, StoreError),
        ("preadv", errno.ESTALE, StoreError),
    ],
)
def test_a_local_file_that_cannot_be_read_now_is_not_called_broken(
    tmp_path, monkeypatch, call, number, kind
):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    storage, out = open_storage(tmp_path), memoryview(bytearray(5))
    storage.put("shards/x.arrow", b"12345")
    with monkeypatch.context() as patch, pytest.raises(StoreError, match=r"x\.arrow") as caught:
        patch.setattr(os, call, fail)
        storage.read_into("shards/x.arrow", 0, out)
    assert type(caught.value) is kind
    storage.put("shards/x.arrow", b"abcde")
    storage.read_into("shards/x.arrow", 0, out)
    assert bytes(out) == b"abcde", "opened again"


SILENCE, URI = 0.4, "s3://bucket/x"
REASON = r"s3://bucket/x.*no answer within \d+ s: check AWS_ENDPOINT_URL.*EVOFEED_S3_TIMEOUT"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        monkeypatch.setenv("EVOFEED_S3_TIMEOUT", str(SILENCE))
        yield


@pytest.mark.parametrize(
    "ask",
    [
        lambda: open_storage(URI).read("refs/main"),
        lambda: open_storage(URI).put("refs/main", b"x"),
        lambda: open_storage(URI).swap("refs/main", None, b"x"),
        lambda: list(open_storage(URI).files("snapshots/")),
        lambda: Dataset.open(URI),
    ],
    ids=["read", "put", "swap", "list", "dataset"],
)
def test_no_request_waits_longer_than_it_says(ask: Callable[[], object], silent: None) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=REASON):
        ask()
    assert time.monotonic() - began < 20 * SILENCE


def test_commands_end_with_one_line(tmp_path, silent: None) -> None:
    write_synthetic(tmp_path / "raw", 1, seed=0)
    listing = ["snapshots", "ls", URI]
    publish = ["featurize", str(tmp_path / "raw"), URI]
    stage = ["featurize", URI, str(tmp_path / "out"), "--stage", str(tmp_path / "stage")]
    for command in (listing, publish, stage):
        began = time.monotonic()
        last = evofeed(*command, code=1).err.strip().splitlines()[-1]
        assert "no answer within" in last, (command, last)
        assert time.monotonic() - began < 60 * SILENCE


@pytest.mark.parametrize("text", ["soon", "0", "nan"])
def test_a_timeout_that_is_none_is_refused(text: str, silent: None, monkeypatch) -> None:
    monkeypatch.setenv("EVOFEED_S3_TIMEOUT", text)
    with pytest.raises(StoreError, match=rf"EVOFEED_S3_TIMEOUT={text!r}: give seconds"):
        open_storage(URI).read("refs/main")

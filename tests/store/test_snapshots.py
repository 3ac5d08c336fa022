"""Snapshots made from snapshots, and the collection of what none of them needs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from tests.store.records import assert_same, flip, published, random_record, tiny_record

from evofeed.base.errors import ChainMissing, RefConflict, ShardCorrupt
from evofeed.store import (
    Dataset,
    DatasetWriter,
    copy_dataset,
    gc,
    leases,
    merge,
    remove_chains,
    write_shard,
)
from evofeed.store.opening import open_storage
from evofeed.store.snapshots import groups_of, join_chains


def make(folder, seeds, **commit):
    """A shard for each chain."""
    return published(folder, map(random_record, seeds), shard_nbytes=1, **commit)


def ids(*seeds):
    return sorted(f"chain{seed}_A" for seed in seeds)


def test_what_cannot_be_is_refused_and_nothing_changes(tmp_path):
    uri = str(tmp_path / "data")
    first = make(uri, range(3))
    writer = DatasetWriter(uri)
    for num_res in (7, 8):
        writer.add_shard(write_shard(uri, [random_record(2, num_res=num_res)]))
    with pytest.raises(ValueError, match="chain2_A is in two rows"):
        writer.commit(expect=first.digest)
    with pytest.raises(KeyError, match="nope"):
        remove_chains(uri, ["nope"])
    published(tmp_path / "odd", [random_record(50, chain_id="chain1_A")])
    with pytest.raises(ValueError, match="chain1_A"):
        merge(uri, str(tmp_path / "odd"))
    assert Dataset.open(uri).digest == first.digest


def age(folder, seconds):
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - seconds, time.time() - seconds))


def test_collection_removes_only_what_is_unreachable_and_old(tmp_path):
    uri = str(tmp_path)
    make(uri, range(3))
    orphan = write_shard(uri, [random_record(9)])
    (tmp_path / "shards" / ".tmp-1-dead").write_bytes(b"half a shard")
    assert gc(uri).removed == () and len(gc(uri).young) == 3
    age(tmp_path, 8 * 24 * 3600)
    report = gc(uri)
    names = {f"shards/{orphan.name}", f"parts/{orphan.sha256}.index", "shards/.tmp-1-dead"}
    assert {item.key for item in report.removed} == names and report.nbytes > 0
    assert (tmp_path / "shards" / orphan.name).exists()
    gc(uri, dry_run=False)
    assert not (tmp_path / "shards" / orphan.name).exists()
    assert gc(uri).removed == ()
    assert Dataset.open(uri).verify(deep=True) == []


def test_shards_are_not_collected_while_a_job_runs(tmp_path):
    uri = str(tmp_path)
    make(uri, range(2))
    write_shard(uri, [random_record(9)])  # a unit of a job
    age(tmp_path, 8 * 24 * 3600)
    storage = open_storage(uri)
    with leases.hold(storage, "job", "7"):
        report = gc(uri, dry_run=False)
        assert report.removed == () and len(report.held) == 2
        assert not leases.current(storage, "gc")
    gc(uri, dry_run=False)
    assert gc(uri).removed == () and Dataset.open(uri).verify(deep=True) == []


def test_a_lease_ends_when_its_holder_is_dead_for_long(tmp_path, monkeypatch):
    uri = str(tmp_path)
    make(uri, range(2))
    write_shard(uri, [random_record(9)])
    storage = open_storage(uri)
    leases.Lease(storage, "leases/job-dead")
    storage.put("leases/job-garbled", b"{")
    age(tmp_path, 8 * 24 * 3600)
    assert len(gc(uri).held) == 2
    monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + 2 * leases.SECONDS)
    assert leases.current(storage, "job") == {}
    assert len(gc(uri, dry_run=False).removed) == 4  # shard, part and two leases
    assert not list(tmp_path.glob("leases/*"))


def test_a_job_waits_for_a_collection_and_a_lease_is_prolonged(tmp_path, monkeypatch):
    storage = open_storage(str(tmp_path))
    with leases.hold(storage, "gc", "one") as lease:
        (until,) = leases.wait_for_none(storage, "gc", 0.0).values()
        lease.renew()
        assert leases.current(storage, "gc") == {"one": until}
        monkeypatch.setattr(time, "time", lambda clock=time.time: clock() + leases.SECONDS / 2)
        lease.renew()
        assert leases.current(storage, "gc")["one"] > until
    assert leases.wait_for_none(storage, "gc", 0.0) == {}


def test_joined_shards_do_not_depend_on_where_their_chains_lay(tmp_path):
    first, second = tmp_path / "one", tmp_path / "other"
    make(first, range(5))
    published(second, map(random_record, range(5)), zstd=False, cluster_sizes={"chain3_A": 4})
    joined = [join_chains(open_storage(str(f)), Dataset.open(f).index) for f in (first, second)]
    assert joined[0] == joined[1] == Dataset.open(second).manifest.shards[0]
    with pytest.raises(ValueError, match="in two rows"):
        table = Dataset.open(first).index
        join_chains(open_storage(str(first)), pa.concat_tables([table, table]))
    assert list(groups_of([3, 3, 9, 1], 5)) == [[0, 1], [2], [3]]


def test_the_same_chains_once_more_are_the_snapshot_that_is_there(tmp_path: Path) -> None:
    uri, digests = str(tmp_path / "data"), []
    for expect, config in ((None, {"a": 1}), (0, {"a": 1}), (0, {"a": 2})):
        before = None if expect is None else digests[-1]
        digests.append(published(uri, [tiny_record()], expect=before, config=config).digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(list((tmp_path / "data" / "snapshots").iterdir())) == 2


def test_a_chain_named_by_its_entry_alone_is_suggested(tmp_path: Path) -> None:
    published(tmp_path / "data", [tiny_record(chain_id="1ujv_L")])
    dataset = Dataset.open(str(tmp_path / "data"))
    with pytest.raises(ChainMissing, match=r"no chain '1ujv' .*did you mean '1ujv_L'"):
        dataset["1ujv"]
    with pytest.raises(ChainMissing, match=r"no chain '9abc' in this snapshot; `evofeed"):
        dataset["9abc"]


RECORDS = [random_record(seed, num_res=40, num_alignments=60) for seed in range(4)]


@pytest.fixture
def source(tmp_path):
    commit = {"cluster_sizes": {"chain2_A": 5}, "config": {"a": 1}}
    published(tmp_path / "source", RECORDS, shard_nbytes=1, **commit)
    return tmp_path / "source"


def check(folder):
    dataset = Dataset.open(folder)
    assert dataset.verify(deep=True) == [] and len(dataset) == 4
    for record in RECORDS:
        assert_same(dataset[record.chain_id], record)
    assert dataset.index["cluster_size"].to_pylist() == [-1, -1, 5, -1]
    return dataset


def test_a_plain_copy_keeps_the_digest_and_fetches_only_what_is_new(source, tmp_path):
    target = tmp_path / "target"
    copied = copy_dataset(source, target)
    assert copied.digest == Dataset.open(source).digest == check(target).digest
    times = {path: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}
    copy_dataset(source, target)
    assert times == {path: path.stat().st_mtime_ns for path in (target / "shards").iterdir()}


def test_copies_and_checks_report_how_much_is_done(source, tmp_path):
    copied, checked = [], []
    copy_dataset(source, tmp_path / "target", progress=lambda *done: copied.append(done))
    dataset = Dataset.open(source)
    nbytes = sum(shard.nbytes for shard in dataset.manifest.shards)
    assert len(copied) == len(RECORDS) and copied == sorted(copied)
    assert copied[-1] == (nbytes, nbytes) and {total for _, total in copied} == {nbytes}
    dataset.verify(deep=True, progress=lambda *done: checked.append(done))
    assert checked == [(number, 8) for number in range(1, 9)]  # four chains and their shards


def test_damage_and_foreign_refs_stop_a_copy(source, tmp_path):
    target = str(tmp_path / "target")
    published(target, [random_record(9)])
    with pytest.raises(RefConflict):
        copy_dataset(source, target)
    flip(min((source / "shards").iterdir()), 50)
    with pytest.raises(ShardCorrupt, match="sha256"):
        copy_dataset(source, tmp_path / "fresh")

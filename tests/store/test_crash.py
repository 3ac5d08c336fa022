"""Killed writers and full disks: a reader sees the old snapshot or the new one, nothing else."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import time

import pytest
from store_records import assert_same, random_record

from evofeed.errors import StoreError
from evofeed.store import Dataset, DatasetWriter, gc, write_shard

FORK = multiprocessing.get_context("fork")


def publish(folder, seeds, expect):
    writer = DatasetWriter(str(folder), shard_nbytes=1 << 14)
    for seed in seeds:
        writer.add(random_record(seed))
    return writer.commit(expect=expect)


@pytest.mark.slow
def test_a_publisher_killed_anywhere_leaves_the_old_snapshot_or_the_new(tmp_path):
    base = publish(tmp_path, range(2), None)
    whole = publish(tmp_path / "other", range(8), None).manifest
    rng = random.Random(3)
    for _ in range(25):
        child = FORK.Process(target=publish, args=(tmp_path, range(8), base.digest))
        child.start()
        time.sleep(rng.uniform(0, 0.25))
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        dataset = Dataset.open(tmp_path)
        assert dataset.verify() == []
        if dataset.digest != base.digest:
            assert dataset.manifest.index_sha256 == whole.index_sha256
    after = publish(tmp_path, range(8), base.digest)
    dataset = Dataset.open(tmp_path)
    assert dataset.digest == after.digest and dataset.manifest.shards == whole.shards
    assert dataset.verify(deep=True) == []
    # What the dead left behind is garbage, and only that.
    gc(str(tmp_path), dry_run=False, grace=-1.0)
    assert not [path for path in tmp_path.rglob(".tmp-*") if "other" not in path.parts]
    assert Dataset.open(tmp_path).verify(deep=True) == []


def fill(folder, limit, pipe):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        write_shard(str(folder), [random_record(1, num_res=300, num_alignments=300)])
        pipe.send("written")
    except StoreError as error:
        pipe.send(str(error))


def test_a_full_disk_is_one_clear_error_and_nothing_half_published(tmp_path):
    first = publish(tmp_path, range(2), None)
    before = sorted(path.name for path in (tmp_path / "shards").iterdir())
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=fill, args=(tmp_path, 20_000, theirs))
    child.start()
    child.join()
    message = ours.recv()
    assert "no room for" in message and "run the same command again" in message
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == before
    assert Dataset.open(tmp_path).digest == first.digest
    entry = write_shard(str(tmp_path), [random_record(1, num_res=300, num_alignments=300)])
    writer = DatasetWriter(str(tmp_path))
    writer.add_shard(entry)
    writer.commit(expect=first.digest)
    expected = random_record(1, num_res=300, num_alignments=300)
    assert_same(Dataset.open(tmp_path)["chain1_A"], expected)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_shard(str(tmp_path / "file"), [random_record(1)])

"""Killed writers and full disks: a reader sees the old snapshot or the new one, nothing else."""

from __future__ import annotations

import hashlib
import itertools
import os
import resource
import shutil
import signal
import sys

import jaxtyping
import pytest
from tests.store.records import published, random_record

from evofeed.base.errors import StoreError
from evofeed.store import Dataset, gc, write_shard

SHARD_NBYTES = 5000  # two shards


@pytest.fixture(autouse=True)
def no_shape_checks():
    """They are made elsewhere; here time counts, and more of it would only blur the kills."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def small(seed):
    return random_record(seed, num_res=9 + seed, num_alignments=5, num_templates=1)


def publish(folder, seeds, expect):
    return published(folder, map(small, seeds), shard_nbytes=SHARD_NBYTES, expect=expect)


def publisher(folder, expect, die_at=-1, most_bytes=resource.RLIM_INFINITY):
    """Publish in a forked process that kills itself before it changes the folder for the nth time,
    or is killed within the first file of more than so many bytes; its exit code."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left, fsync = die_at, os.fsync

    def change(*_):
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    def watch(event, arguments):
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.mkdir", "os.remove", "fcntl.flock"):
            change()

    code = 1
    try:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        sys.addaudithook(watch)
        os.fsync = lambda number: (change(), fsync(number))
        publish(folder, range(4), expect)
        code = 0
    finally:
        os._exit(code)


def assert_hashes(folder):
    """Each file under its final name has the sha256 of its name."""
    for path in folder.glob("shards/[!.]*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    for path in folder.glob("parts/[!.]*"):
        data = path.read_bytes()
        assert hashlib.sha256(data[32:]).digest() == data[:32]
    for path in folder.glob("snapshots/*/manifest.json"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name
        assert (path.parent / "index.arrow").exists()


def opened_digest(folder, *digests):
    """Digest of the snapshot that a reader opens: one of these, and complete."""
    dataset = Dataset.open(folder)
    assert dataset.digest in digests
    assert dataset.verify() == []
    return dataset.digest


@pytest.fixture
def base(fast_path):
    """A published snapshot, and the digest of what the next one will be."""
    folder = fast_path / "base"
    first = publish(folder, range(2), None)
    shutil.copytree(folder, fast_path / "undisturbed")
    after = publish(fast_path / "undisturbed", range(4), first.digest)
    assert len(after.manifest.shards) == 2
    return folder, first.digest, after.digest


def assert_gc_cleans(folder):
    """Garbage collection removes the files of killed publishers and nothing else."""
    gc(str(folder), dry_run=False, grace=-1.0)
    assert not list(folder.rglob(".tmp-*"))
    assert Dataset.open(folder).verify(deep=True) == []


def publish_again(data, before, after):
    """The snapshot after a kill is the old or the new one, and publishing again completes it."""
    assert_hashes(data)
    digest = opened_digest(data, before, after)
    assert publish(data, range(4), before).digest == after
    assert opened_digest(data, after) == after
    return digest


def test_a_publisher_killed_at_every_change_is_repeated_with_the_same_digest(base, fast_path):
    folder, before, after = base
    digests = []
    for number in itertools.count():
        data = shutil.copytree(folder, fast_path / f"killed{number}")
        if (code := publisher(data, before, die_at=number)) == 0:
            break
        assert code == -signal.SIGKILL
        digests.append(publish_again(data, before, after))
        if number % 7 == 0:
            assert_gc_cleans(data)
        shutil.rmtree(data)
    assert len(digests) > 40  # seven files, each opened, synced and renamed, and its folder synced
    assert digests == sorted(digests, key=(before, after).index) and digests.count(after) <= 3


@pytest.mark.parametrize("most_bytes", [40, 4000])
def test_a_publisher_killed_within_a_file_is_repeated_with_the_same_digest(base, most_bytes):
    folder, before, after = base
    assert publisher(folder, before, most_bytes=most_bytes) == -signal.SIGXFSZ
    assert publish_again(folder, before, after) == before
    assert_gc_cleans(folder)


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        write_shard(str(tmp_path / "file"), [random_record(1)])

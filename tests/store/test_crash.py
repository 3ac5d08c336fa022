"""Killed writers and full disks: a reader sees the old snapshot or the new one, nothing else."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from tests.store.records import assert_same, random_record
from tests.store.test_assemblies import complexes

from evofeed.base.errors import StoreError
from evofeed.store import (
    Dataset,
    DatasetWriter,
    add_assemblies,
    faults,
    gc,
    write_shard,
)

FORK = multiprocessing.get_context("fork")
RANDOM_KILLS = 20
SHARD_NBYTES = 5000  # two shards
NONE = {"files": {}}


@pytest.fixture(autouse=True)
def no_shape_checks():
    """They are made elsewhere; here time counts, and more of it would only blur the kills."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a killed process loses no page cache."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="evofeed-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def small(seed):
    return random_record(seed, num_res=9 + seed, num_alignments=5, num_templates=1)


def publish(folder, seeds, expect):
    writer = DatasetWriter(str(folder), shard_nbytes=SHARD_NBYTES)
    for seed in seeds:
        writer.add(small(seed))
    return writer.commit(expect=expect)


def four_chains(folder, expect):
    return publish(folder, range(4), expect)


def publisher(folder, expect, die_at=None, write=four_chains):
    """Publish in a forked process that kills itself at the nth point it reaches; its pid."""
    pid = os.fork()
    if pid:
        return pid
    left = die_at if die_at is not None else 1 << 30

    def hook(_):
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    code = 1
    try:
        faults.hook = hook
        write(folder, expect)
        code = 0
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def everything_in_place_is_whole(folder):
    """Each file under its final name is what the name promises."""
    for path in folder.glob("shards/[!.]*"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    for path in folder.glob("parts/[!.]*"):
        data = path.read_bytes()
        assert hashlib.sha256(data[32:]).digest() == data[:32]
    for path in folder.glob("snapshots/*/manifest.json"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name
        tables = {"index.arrow", *(json.loads(path.read_text()).get("assemblies") or NONE)["files"]}
        assert tables <= {file.name for file in path.parent.iterdir()}


def sees(folder, *digests):
    """Whichever snapshot a reader finds, it is one of these and whole."""
    dataset = Dataset.open(folder)
    assert dataset.digest in digests
    assert dataset.verify() == []
    return dataset.digest


@pytest.fixture
def base(fast_path):
    """A published snapshot, what the next one will be, and every point on the way to it."""
    folder = fast_path / "base"
    first = publish(folder, range(2), None)
    shutil.copytree(folder, fast_path / "undisturbed")
    points = []
    faults.hook = points.append
    try:
        after = publish(fast_path / "undisturbed", range(4), first.digest)
        assert len(after.manifest.shards) == 2
    finally:
        faults.hook = None
    return folder, first.digest, after.digest, points


def swept(folder):
    """What the dead left behind is garbage, and only that."""
    gc(str(folder), dry_run=False, grace=-1.0)
    assert not list(folder.rglob(".tmp-*"))
    assert Dataset.open(folder).verify(deep=True) == []


def test_a_publisher_killed_at_every_point_is_repeated_with_the_same_digest(base, fast_path):
    folder, before, after, points = base
    assert set(points) == set(faults.POINTS), "each name is reached"
    assert points.count("file half written") >= 7  # parts and shards, index, manifest, ref
    for number, point in enumerate(points):
        data = fast_path / f"killed{number}"
        shutil.copytree(folder, data)
        assert exit_code(publisher(data, before, number)) == -signal.SIGKILL, point
        everything_in_place_is_whole(data)
        seen = sees(data, before, after)
        assert seen == before or points.index("ref moved") <= number + 2, point
        assert publish(data, range(4), before).digest == after, point
        assert sees(data, after) == after
        if number % 7 == 0:
            swept(data)
        shutil.rmtree(data)


def add_complexes(folder, expect):
    return add_assemblies(Dataset.open(folder, expect), complexes())


def chains_again(folder, expect):
    """One chain less, on top of a snapshot that has complexes."""
    writer = DatasetWriter(str(folder))
    for chain in complexes()[0].chains:
        writer.add(chain)
    return writer.commit(expect=expect)


def test_writers_of_complexes_killed_on_the_way_are_repeated_with_the_same_digest(fast_path):
    writer = DatasetWriter(str(fast_path / "chains"))
    for chain in (*complexes()[0].chains, small(1)):
        writer.add(chain)
    before = writer.commit().digest
    for name, write in (("complexes", add_complexes), ("again", chains_again)):
        folder, points = fast_path / "chains", []
        shutil.copytree(folder, fast_path / name)
        faults.hook = points.append
        try:
            after = write(fast_path / name, before).digest
        finally:
            faults.hook = None
        assert set(points) >= {"index made, not written", "ref moved"}
        for number, point in list(enumerate(points))[points.index("file in place") :: 3]:
            data = fast_path / "killed"
            shutil.copytree(folder, data)
            assert exit_code(publisher(data, before, number, write)) == -signal.SIGKILL, point
            everything_in_place_is_whole(data)
            sees(data, before, after)
            assert write(data, before).digest == after, point
            assert len(Dataset.open(data).assemblies) == 2
            shutil.rmtree(data)
        swept(fast_path / name)
        shutil.rmtree(folder)
        shutil.move(fast_path / name, folder)
        before = after


def look(folder, before, after, pipe):
    """Read without pause until asked to stop."""
    looks = 0
    while not pipe.poll():
        sees(folder, before, after)
        looks += 1
    pipe.send(looks)


@pytest.mark.slow
def test_publishers_killed_at_random_moments_are_never_seen_half_done(base, fast_path):
    folder, before, after, _ = base
    ours, theirs = FORK.Pipe()
    reader = FORK.Process(target=look, args=(folder, before, after, theirs))
    reader.start()
    began = time.monotonic()
    shutil.copytree(folder, fast_path / "timed")
    assert exit_code(publisher(fast_path / "timed", before)) == 0
    span = time.monotonic() - began
    rng, done = random.Random(3), 0
    for _ in range(RANDOM_KILLS):
        pid = publisher(folder, before)
        time.sleep(rng.uniform(0, span))
        os.kill(pid, signal.SIGKILL)
        if exit_code(pid) == 0:
            done += 1
            span *= 0.9  # it was faster than when it was timed
    assert done < RANDOM_KILLS
    assert publish(folder, range(4), before).digest == after
    ours.send("stop")
    reader.join()
    assert reader.exitcode == 0 and ours.recv() > 0
    everything_in_place_is_whole(folder)
    swept(folder)


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
    assert "no room for" in message and "try again" in message
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

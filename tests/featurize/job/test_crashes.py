from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.bucket import local_bucket
from tests.featurize.job.stage import (
    Digests,
    children,
    kill_at_call,
    kill_tree,
    poison,
    reap_orphans,
    run,
    run_forked,
    start_driver,
    wait_for,
    wait_until,
)

from evofeed.base.errors import DatasetMissing
from evofeed.featurize import discover
from evofeed.featurize import job_commands as commands
from evofeed.featurize.job import ledger, work
from evofeed.featurize.search.programs import descendants
from evofeed.store import Dataset, gc, writer
from evofeed.store.opening import open_storage
from evofeed.store.storage import LocalStorage

RANDOM_KILLS = 12
"""In addition to those of the store's tests, and those at named fault points."""
KILLS_PER_JOB = 6


def reader_sees_all_or_nothing(dataset: Path, digest: str) -> bool:
    """True if a reader finds the full dataset, False if none; fails for a part."""
    try:
        found = Dataset.open(str(dataset))
    except DatasetMissing:
        return False
    assert found.digest == digest
    found.verify()
    return True


def kill_something(pid: int, rng: random.Random) -> str:
    """SIGKILL the driver, one worker, or the whole tree."""
    target = rng.choice(["driver", "worker", "tree"])
    workers = children(pid)
    if target == "tree":
        kill_tree(pid)
    elif target == "worker" and workers:
        with contextlib.suppress(ProcessLookupError):  # its driver has just ended it
            os.kill(rng.choice(workers), signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
    return target


def survive(raw: Path, dataset: Path, digest: str, rng: random.Random, span: float) -> int:
    """Start drivers and kill each within `span` seconds until one gets through; counts kills."""
    kills = 0
    while True:
        pid = start_driver(raw, dataset, lambda: None)
        time.sleep(rng.uniform(0.0, span))
        if kills < KILLS_PER_JOB and os.waitpid(pid, os.WNOHANG) == (0, 0):
            kill_something(pid, rng)
            kills += 1
            code = wait_for(pid)
        elif kills < KILLS_PER_JOB:
            return kills  # it was faster than the dice
        else:
            code = wait_for(pid)
        reap_orphans()
        is_published = reader_sees_all_or_nothing(dataset, digest)
        if code == 0:
            assert is_published
            return kills


def _kill_at_random(raw: Path, fast_path: Path, digest: str, times: int) -> None:
    began = time.monotonic()
    run(raw, fast_path / "timed")
    span = time.monotonic() - began  # so that kills fall on every phase of a job
    rng, kills, rounds = random.Random(7), 0, 0
    while kills < times:
        dataset = fast_path / f"data{rounds}"
        killed = survive(raw, dataset, digest, rng, span)
        if killed < KILLS_PER_JOB:  # it was faster than when it was timed
            span *= 0.8
        shutil.rmtree(dataset)
        kills, rounds = kills + killed, rounds + 1
        assert rounds < 4 * times, "jobs end before they can be killed"


def test_killed_at_random_moments_the_digest_is_the_same(
    raw: Path, fast_path: Path, undisturbed: Digests
) -> None:
    run_forked(lambda: _kill_at_random(raw, fast_path, undisturbed.snapshot, RANDOM_KILLS))


FAULT_POINTS: list[tuple[str, Any, str, str, int]] = [
    ("job entered", ledger.Ledger, "begin", "after", 1),
    ("unit leased", ledger.Ledger, "lease", "after", 3),
    ("unit done, not entered", ledger.Ledger, "finish", "before", 3),
    ("unit entered", ledger.Ledger, "finish", "after", 3),
    ("a worker before its shard", work, "write_shard", "before", 1),
    ("a worker after its shard", work, "write_shard", "after", 1),
    ("a file before it is written", LocalStorage, "put", "before", 5),
    ("a file after it is written", LocalStorage, "put", "after", 5),
    ("index and manifest not written", writer, "write_snapshot", "before", 1),
    ("ref not moved", LocalStorage, "swap", "before", 1),
    ("ref moved, ledger does not know", LocalStorage, "swap", "after", 1),
]


def _die_once_then_resume(
    raw: Path, fast_path: Path, digest: str, owner: Any, name: str, when: str, nth: int
) -> None:
    mark, dataset = fast_path / "mark", fast_path / "data"
    pid = start_driver(raw, dataset, lambda: kill_at_call(owner, name, when, nth, mark))
    code = wait_for(pid)
    assert mark.exists(), "the fault point was never reached"
    reap_orphans()
    is_published = reader_sees_all_or_nothing(dataset, digest)
    assert is_published or code != 0
    report = run(raw, dataset)
    assert report.snapshot == digest
    assert not list(dataset.rglob(".tmp-*")) or code != 0


@pytest.mark.parametrize("point", FAULT_POINTS, ids=lambda point: point[0])
def test_dying_at_a_fault_point_changes_nothing(
    raw: Path, fast_path: Path, undisturbed: Digests, point: tuple[Any, ...]
) -> None:
    run_forked(lambda: _die_once_then_resume(raw, fast_path, undisturbed.snapshot, *point[1:]))


def test_interrupting_a_job_stops_its_workers_and_keeps_what_is_done(
    raw: Path, fast_path: Path, undisturbed: Digests
) -> None:
    def act() -> None:
        pid = start_driver(raw, fast_path, lambda: signal.signal(signal.SIGINT, _interrupt))
        wait_until(lambda: list(fast_path.glob("shards/*.arrow")))
        os.kill(pid, signal.SIGINT)
        wait_for(pid)
        assert not descendants(pid)

    run_forked(act)
    assert run_forked(lambda: run(raw, fast_path)).snapshot == undisturbed.snapshot


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def test_a_running_job_is_told_from_one_whose_driver_was_killed(raw: Path, fast_path: Path) -> None:
    begun = fast_path / "begun"

    def wait_for_the_end() -> None:
        begun.touch()
        signal.pause()

    def status_text() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            commands.status(str(fast_path))
        return output.getvalue()

    def act() -> tuple[str, str]:
        names = [source.chain_id for source in discover(str(raw))]
        acts: dict[str, Callable[[], None]] = dict.fromkeys(names, wait_for_the_end)
        pid = start_driver(raw, fast_path, lambda: poison(acts))
        wait_until(begun.exists)
        alive = status_text()
        kill_tree(pid)
        wait_for(pid)
        return alive, status_text()

    alive, dead = run_forked(act)
    assert "running" in alive
    assert "stopped" in dead and "`evofeed jobs run` continues it" in dead


ROOT = Path(__file__).parents[3]
DRIVER = """
import sys
from pathlib import Path
from tests.featurize.job.stage import block_call, run
from evofeed.store import DatasetWriter
if sys.argv[3:]:
    block_call(Path(sys.argv[3]), DatasetWriter, "commit")
report = run(Path(sys.argv[1]), sys.argv[2], workers=1)
print(report.state, report.snapshot, report.resumed, report.num_shards)
"""


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket of a local S3 server, with a local ledger for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with local_bucket() as server:
        yield server.uri


def start(raw: Path, uri: str, *mark: Path) -> subprocess.Popen[str]:
    """Start a driver in a new interpreter, since the S3 client does not survive a fork.

    With a mark, it publishes only once that file exists.
    """
    command = [sys.executable, "-c", DRIVER, str(raw), uri, *map(str, mark)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT)


def finish(driver: subprocess.Popen[str]) -> list[str]:
    output, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0
    return output.split()


@pytest.mark.slow
def test_a_job_on_s3_killed_and_run_again_publishes_the_same_snapshot(
    raw: Path, bucket: str, undisturbed: Digests, tmp_path: Path
) -> None:
    uri = f"{bucket}/data"
    storage = open_storage(uri)
    driver = start(raw, uri, tmp_path / "never")
    while not list(storage.files("shards/")):
        time.sleep(0.02)
        assert driver.poll() is None
    kill_tree(driver.pid)
    assert driver.wait() == -signal.SIGKILL
    driver.communicate()
    shards_left = list(storage.files("shards/"))
    assert shards_left and not list(storage.files("refs/")), "killed before it was done"
    assert gc(uri, dry_run=False, grace=-1.0).held, "its lease outlives it for a while"

    state, snapshot, resumed, shards = finish(start(raw, uri))
    assert (state, snapshot, shards) == ("published", undisturbed.snapshot, "6")
    assert int(resumed) >= len(shards_left) - 1
    dataset = Dataset.open(uri)
    assert dataset.digest == undisturbed.snapshot
    assert dataset.verify(deep=True) == []
    checksums = dict(zip(dataset, dataset.index["checksum"].to_pylist(), strict=True))
    assert checksums == undisturbed.checksums
    gc(uri, dry_run=False, grace=-1.0)
    folders = {item.key.split("/")[0] for item in storage.files("")}
    assert folders == {"shards", "parts", "snapshots", "refs"}
    assert len(list(storage.files("shards/"))) == 6

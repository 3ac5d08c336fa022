from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    children,
    descendants,
    hold_still,
    kill_tree,
    on_stage,
    run,
    start_driver,
    wait_for,
    wait_for_silence,
    wait_until,
)

from evofeed.base.errors import DatasetMissing
from evofeed.featurize import discover
from evofeed.featurize.job import driver, ledger, publish, work
from evofeed.store import Dataset, writer
from evofeed.store.storage import LocalStorage

RANDOM_KILLS = 12
"""Besides those in the store's own tests, and those at named points here and there."""
KILLS_PER_JOB = 6


def reader_sees_all_or_nothing(dataset: Path, digest: str) -> bool:
    """A reader finds no dataset yet, or the whole of it; never a part."""
    try:
        found = Dataset.open(str(dataset))
    except DatasetMissing:
        return False
    assert found.digest == digest
    found.verify()
    return True


def kill_something(pid: int, dice: random.Random) -> str:
    """SIGKILL the driver, one worker, or the whole tree."""
    target = dice.choice(["driver", "worker", "tree"])
    workers = children(pid)
    if target == "tree":
        kill_tree(pid)
    elif target == "worker" and workers:
        with contextlib.suppress(ProcessLookupError):  # its driver has just ended it
            os.kill(dice.choice(workers), signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
    return target


def survive(raw: Path, dataset: Path, digest: str, dice: random.Random, span: float) -> int:
    """Start drivers and kill each within `span` seconds until one gets through; counts kills."""
    kills = 0
    while True:
        pid = start_driver(raw, dataset, lambda: None)
        time.sleep(dice.uniform(0.0, span))
        if kills < KILLS_PER_JOB and os.waitpid(pid, os.WNOHANG) == (0, 0):
            kill_something(pid, dice)
            kills += 1
            code = wait_for(pid)
        elif kills < KILLS_PER_JOB:
            return kills  # it was faster than the dice
        else:
            code = wait_for(pid)
        wait_for_silence()
        whole = reader_sees_all_or_nothing(dataset, digest)
        if code == 0:
            assert whole
            return kills


def _kill_at_random(raw: Path, fast_path: Path, digest: str, times: int) -> None:
    began = time.monotonic()
    run(raw, fast_path / "timed")
    span = time.monotonic() - began  # so that kills fall on every phase of a job
    dice, kills, rounds = random.Random(7), 0, 0
    while kills < times:
        dataset = fast_path / f"data{rounds}"
        more = survive(raw, dataset, digest, dice, span)
        if more < KILLS_PER_JOB:  # it was faster than when it was timed
            span *= 0.8
        shutil.rmtree(dataset)
        kills, rounds = kills + more, rounds + 1
        assert rounds < 4 * times, "jobs end before they can be killed"


def test_killed_at_random_moments_the_digest_is_the_same(
    raw: Path, fast_path: Path, honest: tuple[str, Any]
) -> None:
    on_stage(lambda: _kill_at_random(raw, fast_path, honest[0], RANDOM_KILLS))


FAULT_POINTS: list[tuple[str, Any, str, str, int]] = [
    ("job entered", ledger.Ledger, "begin", "after", 1),
    ("first lease", ledger.Ledger, "lease", "before", 1),
    ("unit leased", ledger.Ledger, "lease", "after", 3),
    ("unit done, not entered", ledger.Ledger, "finish", "before", 3),
    ("unit entered", ledger.Ledger, "finish", "after", 3),
    ("last unit entered", ledger.Ledger, "finish", "after", 6),
    ("a worker before its shard", work, "write_shard", "before", 1),
    ("a worker after its shard", work, "write_shard", "after", 1),
    ("a file before it is written", LocalStorage, "put", "before", 5),
    ("a file after it is written", LocalStorage, "put", "after", 5),
    ("publishing begins", driver, "publish", "before", 1),
    ("units not joined", publish, "join_chains", "before", 1),
    ("units joined, ledger does not know", publish, "join_chains", "after", 1),
    ("units joined, not published", ledger.Ledger, "set_home", "after", 1),
    ("index and manifest not written", writer, "write_snapshot", "before", 1),
    ("index and manifest written", writer, "write_snapshot", "after", 1),
    ("ref not moved", LocalStorage, "swap", "before", 1),
    ("ref moved, ledger does not know", LocalStorage, "swap", "after", 1),
    ("published, ledger does not know", driver, "publish", "after", 1),
    ("published, shards of units still there", publish, "sweep", "before", 1),
    ("some shards of units are gone", LocalStorage, "delete", "after", 4),
    ("all over but for the report", driver, "drop_joined", "after", 1),
]


def arm(owner: Any, name: str, when: str, nth: int, mark: Path) -> None:
    """Have the process that makes the nth call of a function kill itself, once in all."""
    honest: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        due = calls >= nth and not mark.exists()
        if due and when == "before":
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        result = honest(*args, **kwargs)
        if due:
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def _die_once_then_resume(
    raw: Path, fast_path: Path, digest: str, owner: Any, name: str, when: str, nth: int
) -> None:
    mark, dataset = fast_path / "mark", fast_path / "data"
    pid = start_driver(raw, dataset, lambda: arm(owner, name, when, nth, mark))
    code = wait_for(pid)
    assert mark.exists(), "the fault point was never reached"
    wait_for_silence()
    whole = reader_sees_all_or_nothing(dataset, digest)
    assert whole or code != 0
    report = run(raw, dataset)
    assert report.snapshot == digest
    assert not list(dataset.rglob(".tmp-*")) or code != 0


@pytest.mark.parametrize(
    ("owner", "name", "when", "nth"),
    [point[1:] for point in FAULT_POINTS],
    ids=[point[0] for point in FAULT_POINTS],
)
def test_dying_at_a_fault_point_changes_nothing(
    raw: Path,
    fast_path: Path,
    honest: tuple[str, Any],
    owner: Any,
    name: str,
    when: str,
    nth: int,
) -> None:
    on_stage(lambda: _die_once_then_resume(raw, fast_path, honest[0], owner, name, when, nth))


def test_two_drivers_do_not_run_one_job(
    raw: Path, fast_path: Path, honest: tuple[str, Any]
) -> None:
    from evofeed.base.errors import JobError
    from evofeed.featurize.job import JobHost

    def act() -> None:
        mark = fast_path / "mark"
        pid = start_driver(raw, fast_path, lambda: hold_still(mark, driver, "publish"))
        wait_until(lambda: list(fast_path.glob("leases/job-*")))
        with pytest.raises(JobError, match="another process"):
            run(raw, fast_path, host=JobHost(waits=lambda seconds: False))
        mark.touch()
        assert wait_for(pid) == 0

    on_stage(act)
    assert reader_sees_all_or_nothing(fast_path, honest[0])


def test_interrupting_a_job_stops_its_workers_and_keeps_what_is_done(
    raw: Path, fast_path: Path, honest: tuple[str, Any]
) -> None:
    def act() -> None:
        pid = start_driver(raw, fast_path, lambda: signal.signal(signal.SIGINT, _interrupt))
        wait_until(lambda: list(fast_path.glob("shards/*.arrow")))
        os.kill(pid, signal.SIGINT)
        wait_for(pid)
        assert not descendants(pid)

    on_stage(act)
    assert on_stage(lambda: run(raw, fast_path)).snapshot == honest[0]


def _interrupt(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt


def test_watching_a_job_tells_how_far_it_is_until_it_is_over(
    raw: Path, fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evofeed.featurize import job_commands as commands

    honest_line = commands._line
    last = discover(str(raw))[7].chain_id
    begun, looked, seen_enough = (fast_path / name for name in ("begun", "looked", "seen_enough"))
    reported: list[str] = []

    def waits_for_the_watcher() -> None:
        honest_featurize = work.featurize_chain

        def featurize_chain(source: Any, config: Any) -> Any:
            begun.touch()
            wait_until(looked.exists)
            if source.chain_id == last:
                wait_until(seen_enough.exists)
            return honest_featurize(source, config)

        work.featurize_chain = featurize_chain  # type: ignore[assignment]

    def line(status: dict[str, Any]) -> str:
        reported.append(honest_line(status))
        looked.touch()
        if len(reported) > 3 and any("ETA" in text for text in reported):
            seen_enough.touch()
        return reported[-1]

    def act() -> str:
        commands._LOOK = 0.05
        commands._line = line
        pid = start_driver(raw, fast_path, waits_for_the_watcher)
        wait_until(begun.exists)
        commands.status(str(fast_path), watch=True)
        assert wait_for(pid) == 0
        return capsys.readouterr().out

    lines = on_stage(act).splitlines()
    assert len(lines) > 3
    assert all("running" in line for line in lines[:-1])
    assert "published  100%  12/12 good, 0 broken" in lines[-1]
    assert any(re.search(r"  ETA \d+:\d\d$", line) for line in lines)
    shares = [int(line.split("%")[0].split()[-1]) for line in lines]
    assert shares == sorted(shares)


def test_status_tells_a_job_whose_driver_was_killed_from_a_running_one(
    raw: Path, fast_path: Path
) -> None:
    from evofeed.featurize import job_commands as commands
    from evofeed.featurize.job import Ledger

    def act() -> tuple[str, str]:
        mark = fast_path / "mark"
        pid = start_driver(raw, fast_path, lambda: hold_still(mark, driver, "publish"))
        wait_until(lambda: list(fast_path.glob("shards/*.arrow")))
        book = Ledger(str(fast_path / "jobs" / "ledger.sqlite"))
        alive = commands._status(book, book.jobs()[0])["state"]
        kill_tree(pid)
        wait_for(pid)
        dead = commands._status(book, book.jobs()[0])["state"]
        book.close()
        return alive, dead

    assert on_stage(act) == ("running", "stopped")

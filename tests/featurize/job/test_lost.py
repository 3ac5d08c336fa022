"""Units that are lost, and who is blamed: an executor that loses them on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import checksums, run

from evofeed.errors import JobError
from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, Ledger, open_executor
from evofeed.featurize.job.executors import ExecutorGone, Outcome
from evofeed.featurize.job.work import UnitTask, run_unit
from evofeed.featurize.job.worker import UnitLost

Fate = Callable[[UnitTask], Outcome | ExecutorGone | None]
"""What happens to a unit; nothing special if None."""


class Fateful:
    """Runs units here, two in flight, unless fate has it otherwise."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.tasks: list[UnitTask] = []

    def room(self) -> int:
        return 2 - len(self.tasks)

    def submit(self, task: UnitTask) -> None:
        self.tasks.append(task)

    def wait(self, timeout: float) -> list[Outcome]:
        task = self.tasks.pop(0)
        outcome = self.fate(task)
        if isinstance(outcome, ExecutorGone):
            raise outcome
        return [outcome or run_unit(task, lambda chain_id: None)]

    def close(self) -> None:
        self.tasks.clear()


def fated(raw: Path, dataset: Path, fate: Fate, **changes: Any) -> JobReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_executor, "LocalExecutor", lambda workers, deadline: Fateful(fate))
        return run(raw, dataset, **changes)


def lost(task: UnitTask) -> UnitLost:
    return UnitLost(task.unit_id, None, "WorkerCrashedError")


def gone(again: bool) -> ExecutorGone:
    return ExecutorGone("Ray is gone: its raylet died", again=again)


def nothing_is_dead(report: JobReport, dataset: Path) -> bool:
    ledger = Ledger(str(dataset / "jobs" / "ledger.sqlite"))
    counts = ledger.counts(report.job_id)
    ledger.close()
    return not report.broken and not counts["chains_broken"]


def test_a_chain_whose_watcher_dies_with_it_is_found_and_its_neighbours_are_not_blamed(
    raw: Path, fast_path: Path, honest: tuple[str, dict[str, int]]
) -> None:
    victim = discover(str(raw))[7].chain_id

    def fate(task: UnitTask) -> Outcome | None:
        return lost(task) if victim in {s.chain_id for s in task.sources} else None

    report = fated(raw, fast_path, fate, max_broken=0.2)
    (broken,) = report.broken
    assert (broken["chain_id"], broken["type"]) == (victim, "WorkerKilled")
    assert "3 times (WorkerCrashedError)" in broken["message"]
    assert checksums(fast_path) == {k: v for k, v in honest[1].items() if k != victim}


def test_losses_that_end_blame_nobody(raw: Path, fast_path: Path, honest: tuple[str, Any]) -> None:
    """Every unit is lost five times, some chains alone, whatever it holds."""
    losses: dict[str, int] = {}

    def fate(task: UnitTask) -> Outcome | None:
        losses[task.unit_id] = losses.get(task.unit_id, 0) + 1
        return lost(task) if losses[task.unit_id] <= 5 else None

    report = fated(raw, fast_path, fate)
    assert report.snapshot == honest[0]
    assert report.lost_workers == 5 * report.units


@pytest.mark.parametrize("chain_id", [None, ""], ids=["nobody knows", "none in hand"])
def test_workers_that_die_over_no_chain_fail_the_job_and_give_up_nothing(
    raw: Path, fast_path: Path, honest: tuple[str, Any], chain_id: str | None
) -> None:
    def fate(task: UnitTask) -> Outcome | None:
        whole = len(task.sources) > 1
        return UnitLost(task.unit_id, chain_id, "exit 1") if whole else None

    with pytest.raises(JobError, match=r"6 workers .* none of these is to blame \(exit 1\)"):
        fated(raw, fast_path, fate)
    again = run(raw, fast_path)
    assert again.snapshot == honest[0]
    assert nothing_is_dead(again, fast_path)


def test_a_ray_of_our_own_is_started_again_as_long_as_it_gets_something_done(
    raw: Path, fast_path: Path, honest: tuple[str, Any]
) -> None:
    turns = iter(range(1000))

    def fate(task: UnitTask) -> ExecutorGone | None:
        return gone(again=True) if next(turns) % 3 == 0 else None

    report = fated(raw, fast_path, fate)
    assert report.snapshot == honest[0]
    assert report.restarts >= 2
    assert nothing_is_dead(report, fast_path)


@pytest.mark.parametrize(("again", "done"), [(True, 0), (False, 3)], ids=["ours", "a cluster"])
def test_a_ray_that_stays_gone_fails_the_job_and_the_same_command_repairs_it(
    raw: Path, fast_path: Path, honest: tuple[str, Any], again: bool, done: int
) -> None:
    turns = iter(range(1000))
    report = fated(
        raw, fast_path, lambda task: gone(again) if next(turns) >= done else None, max_broken=1.0
    )
    assert (report.state, report.exit_code, report.num_good) == ("failed", 1, 2 * done)
    assert report.restarts == again
    assert report.message == "nothing was published: Ray is gone: its raylet died"
    assert nothing_is_dead(report, fast_path)
    repaired = run(raw, fast_path)
    assert (repaired.snapshot, repaired.resumed) == (honest[0], done)

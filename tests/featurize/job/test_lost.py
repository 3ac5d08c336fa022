"""Units that are lost, and who is blamed: an executor that loses them on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import Fateful, checksums, run

from evofeed.base.errors import JobError
from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, Ledger, dispatch
from evofeed.featurize.job.dispatch import Blame
from evofeed.featurize.job.executors import Outcome
from evofeed.featurize.job.units import Plan, Unit
from evofeed.featurize.job.work import UnitTask
from evofeed.featurize.job.worker import UnitLost

Fate = Callable[[UnitTask], Outcome | None]
"""What happens to a unit; nothing special if None."""


def fated(raw: Path, dataset: Path, fate: Fate, **changes: Any) -> JobReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "open_executor", lambda options: Fateful(fate))
        return run(raw, dataset, **changes)


def lost(task: UnitTask) -> UnitLost:
    return UnitLost(task.unit_id, None, "WorkerCrashedError")


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
    again = fated(raw, fast_path, lambda task: None)
    assert again.snapshot == honest[0]
    assert nothing_is_dead(again, fast_path)


def test_a_unit_of_many_is_tried_in_parts_down_to_the_one_that_kills(tmp_path: Path) -> None:
    ledger, names = Ledger(str(tmp_path / "ledger.sqlite")), tuple(f"c{n:02d}" for n in range(40))
    place = {"input_uri": "raw", "dataset_uri": "data", "arguments": {}}
    ledger.begin("job", Plan("", (Unit("unit", names, 40, 1),), {}, {}), place, None)
    blame, sent = Blame(ledger, "job", 1.0), list[tuple[str, ...]]()
    while not sent or sent[-1] != names[:7] + names[8:]:
        dead = {chain["chain_id"] for chain in ledger.chains("job")}
        sent.append(blame.suspects("unit") or tuple(n for n in names if n not in dead))
        if names[7] in sent[-1]:
            blame.lost(UnitLost("unit", None, "node died"), sent[-1])
        else:
            blame.was_trial("unit")
    assert [len(each) for each in sent[:3]] == [40, 40, 40]
    assert sent[3:6] == [names[:3], names[3:6], names[6:9]]
    assert [each for each in sent if each == names[7:8]] == [names[7:8]] * 3
    assert len(sent) == 3 + 14 + 2 + 5 + 1  # whole, parts, one of them twice more, its three, rest
    assert [chain["chain_id"] for chain in ledger.chains("job", dead=None)] == [names[7]]
    ledger.close()

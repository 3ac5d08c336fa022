from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    LOADED,
    Digests,
    InjectedExecutor,
    checksums,
    deadline_only_for,
    poison,
    run,
    run_forked,
)

from evofeed.base.errors import JobError
from evofeed.featurize import discover
from evofeed.featurize.job import JobReport, Ledger, dispatch
from evofeed.featurize.job.dispatch import Blame
from evofeed.featurize.job.executors import Outcome
from evofeed.featurize.job.units import Plan, Unit
from evofeed.featurize.job.work import UnitTask
from evofeed.featurize.job.worker import UnitLost, Worker

MEMORY = 512 << 20
DEADLINE = 1.0


def _raise() -> None:
    raise RuntimeError("no such luck")


def _crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _leave() -> None:
    sys.exit(3)


def _spin_in_c() -> None:
    sum(range(10**13))  # never looks at signals in Python


def _devour() -> None:
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def _hang_in_a_tool() -> None:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(1000)"], check=True)


POISONS: list[tuple[Callable[[], None], str, str]] = [
    (_raise, "RuntimeError", "no such luck"),
    (_crash, "WorkerKilled", "killed its worker 2 times (signal SIGSEGV)"),
    (_leave, "WorkerKilled", "killed its worker 2 times (exit 1)"),
    (_spin_in_c, "WorkerKilled", "took longer than 1 s, 2 times"),
    (_devour, "MemoryError", "needs more than 512 MiB"),
    (_hang_in_a_tool, "WorkerKilled", "took longer than 1 s, 2 times"),
]
ENDLESS = (_spin_in_c, _hang_in_a_tool)


def _poisoned(raw: Path, dataset: Path, acts: dict[str, Callable[[], None]]) -> JobReport:
    poison(acts)
    deadline_only_for([chain_id for chain_id, act in acts.items() if act in ENDLESS])
    return run(raw, dataset, memory=MEMORY, deadline=DEADLINE, max_broken=0.7)


def test_poisonous_chains_are_quarantined_each_with_its_reason_and_nothing_else_changes(
    raw: Path, fast_path: Path, undisturbed: Digests
) -> None:
    sources = discover(str(raw))
    acts = {sources[k].chain_id: act for k, (act, _, _) in enumerate(POISONS)}
    report = run_forked(lambda: _poisoned(raw, fast_path, acts))
    assert [item["chain_id"] for item in report.broken] == sorted(acts)
    broken = {item["chain_id"]: item for item in report.broken}
    for chain_id, (_, kind, message) in zip(acts, POISONS, strict=True):
        assert broken[chain_id]["type"] == kind
        assert message in broken[chain_id]["message"]
    assert checksums(fast_path) == {k: v for k, v in undisturbed.checksums.items() if k not in acts}


def test_a_chain_that_kills_once_is_acquitted(
    raw: Path, fast_path: Path, undisturbed: Digests
) -> None:
    victim, mark = discover(str(raw))[5].chain_id, fast_path / "mark"

    def once() -> None:
        if not mark.exists():
            mark.touch()
            _crash()

    report = run_forked(lambda: _poisoned(raw, fast_path / "data", {victim: once}))
    assert (report.num_broken, report.lost_workers) == (0, 1)
    assert report.snapshot == undisturbed.snapshot


def test_who_has_gone_on_to_another_chain_is_not_late_however_long_nobody_listened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Worker] = []
    monkeypatch.setattr(Worker, "kill", lambda worker: killed.append(worker))
    worker = Worker.__new__(Worker)
    worker.connection, remote = Pipe()
    worker.chain_id, worker._started_at = "1abc_A", -1e9
    remote.send("2def_B")
    worker.enforce_deadline(DEADLINE)
    assert not killed
    assert worker.connection.recv() == "2def_B"
    worker.enforce_deadline(DEADLINE)
    assert killed == [worker]
    worker.connection.close()
    remote.close()


LOADS = """
from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import work

task = work.UnitTask(
    unit_id="one", dataset_uri=sys.argv[2], sources=tuple(discover(sys.argv[1])[:2]),
    config=FeaturizeConfig(), crop=None, memory=8 << 30,
)
seen = []
task.work(lambda chain_id: seen.append(loaded()))
assert len(seen) == 3 and seen[0] == seen[-1], seen[-1][0] - seen[0][0]
"""


def test_a_worker_loads_and_compiles_what_it_needs_before_a_chain_is_in_hand(
    raw: Path, tmp_path: Path
) -> None:
    """Seconds, on a slow machine a minute, that count against no chain's deadline."""
    subprocess.run([sys.executable, "-c", LOADED + LOADS, str(raw), str(tmp_path)], check=True)


Inject = Callable[[UnitTask], Outcome | None]
"""Returns an outcome instead of running a unit; None: run it."""


def run_injected(raw: Path, dataset: Path, inject: Inject, **changes: Any) -> JobReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "open_executor", lambda options: InjectedExecutor(inject))
        return run(raw, dataset, **changes)


def lost(task: UnitTask) -> UnitLost:
    return UnitLost(task.unit_id, None, "WorkerCrashedError")


def test_a_chain_whose_watcher_dies_with_it_is_found_and_its_neighbours_are_not_blamed(
    raw: Path, fast_path: Path, undisturbed: Digests
) -> None:
    victim = discover(str(raw))[7].chain_id

    def inject(task: UnitTask) -> Outcome | None:
        return lost(task) if victim in {s.chain_id for s in task.sources} else None

    report = run_injected(raw, fast_path, inject, max_broken=0.2)
    (broken,) = report.broken
    assert (broken["chain_id"], broken["type"]) == (victim, "WorkerKilled")
    assert "3 times (WorkerCrashedError)" in broken["message"]
    assert checksums(fast_path) == {k: v for k, v in undisturbed.checksums.items() if k != victim}


def test_losses_that_end_blame_nobody(raw: Path, fast_path: Path, undisturbed: Digests) -> None:
    """Every unit is lost five times, some chains alone, whatever it holds."""
    losses: dict[str, int] = {}

    def inject(task: UnitTask) -> Outcome | None:
        losses[task.unit_id] = losses.get(task.unit_id, 0) + 1
        return lost(task) if losses[task.unit_id] <= 5 else None

    report = run_injected(raw, fast_path, inject)
    assert report.snapshot == undisturbed.snapshot
    assert report.lost_workers == 5 * report.units


@pytest.mark.parametrize("chain_id", [None, ""], ids=["nobody knows", "none in hand"])
def test_workers_that_die_over_no_chain_fail_the_job_and_give_up_nothing(
    raw: Path, fast_path: Path, undisturbed: Digests, chain_id: str | None
) -> None:
    def inject(task: UnitTask) -> Outcome | None:
        whole = len(task.sources) > 1
        return UnitLost(task.unit_id, chain_id, "exit 1") if whole else None

    with pytest.raises(JobError, match=r"6 workers .* none of these is to blame \(exit 1\)"):
        run_injected(raw, fast_path, inject)
    again = run_injected(raw, fast_path, lambda task: None)
    assert again.snapshot == undisturbed.snapshot
    assert not again.broken
    with closing(Ledger(str(fast_path / "jobs" / "ledger.sqlite"))) as ledger:
        assert not ledger.counts(again.job_id)["chains_broken"]


def test_a_unit_of_many_is_tried_in_parts_down_to_the_one_that_kills(tmp_path: Path) -> None:
    ledger, names = Ledger(str(tmp_path / "ledger.sqlite")), tuple(f"c{n:02d}" for n in range(40))
    request = {"input_uri": "raw", "dataset_uri": "data", "arguments": {}}
    ledger.begin("job", Plan("", (Unit("unit", names, 40, 1),), {}, {}), request, None)
    blame, attempts = Blame(ledger, "job", 1.0), list[tuple[str, ...]]()
    while not attempts or attempts[-1] != names[:7] + names[8:]:
        dead = {chain["chain_id"] for chain in ledger.chains("job")}
        attempts.append(blame.suspects("unit") or tuple(n for n in names if n not in dead))
        if names[7] in attempts[-1]:
            blame.record_loss(UnitLost("unit", None, "node died"), attempts[-1])
        else:
            blame.end_trial("unit")
    assert [len(attempt) for attempt in attempts[:3]] == [40, 40, 40]
    assert attempts[3:6] == [names[:3], names[3:6], names[6:9]]
    assert [attempt for attempt in attempts if attempt == names[7:8]] == [names[7:8]] * 3
    assert len(attempts) == 3 + 14 + 2 + 5 + 1  # full, parts, one part twice, its three, rest
    assert [chain["chain_id"] for chain in ledger.chains("job", dead=None)] == [names[7]]
    ledger.close()


def test_an_interruption_during_the_fork_of_a_worker_is_not_lost() -> None:
    def act() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            Worker()

    run_forked(act)

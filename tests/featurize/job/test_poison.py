from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path

import pytest
from tests.featurize.job.stage import LOADED, checksums, hurry_only, on_stage, poison, run

from evofeed.featurize import discover
from evofeed.featurize.job import JobReport
from evofeed.featurize.job.worker import Worker

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
    hurry_only([chain_id for chain_id, act in acts.items() if act in ENDLESS])
    return run(raw, dataset, memory=MEMORY, deadline=DEADLINE, max_broken=0.7)


def test_poisonous_chains_are_quarantined_each_with_its_reason_and_nothing_else_changes(
    raw: Path, fast_path: Path, honest: tuple[str, dict[str, int]]
) -> None:
    sources = discover(str(raw))
    acts = {sources[k].chain_id: act for k, (act, _, _) in enumerate(POISONS)}
    report = on_stage(lambda: _poisoned(raw, fast_path, acts))
    assert [item["chain_id"] for item in report.broken] == sorted(acts)
    broken = {item["chain_id"]: item for item in report.broken}
    for chain_id, (_, kind, message) in zip(acts, POISONS, strict=True):
        assert broken[chain_id]["type"] == kind
        assert message in broken[chain_id]["message"]
    assert checksums(fast_path) == {k: v for k, v in honest[1].items() if k not in acts}


def test_a_chain_that_kills_once_is_acquitted(
    raw: Path, fast_path: Path, honest: tuple[str, dict[str, int]]
) -> None:
    victim, mark = discover(str(raw))[5].chain_id, fast_path / "mark"

    def once() -> None:
        if not mark.exists():
            mark.touch()
            _crash()

    report = on_stage(lambda: _poisoned(raw, fast_path / "data", {victim: once}))
    assert (report.num_broken, report.lost_workers) == (0, 1)
    assert report.snapshot == honest[0]


def test_who_has_gone_on_to_another_chain_is_not_late_however_long_nobody_listened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[Worker] = []
    monkeypatch.setattr(Worker, "kill", lambda worker: killed.append(worker))
    worker = Worker.__new__(Worker)
    worker.connection, theirs = Pipe()
    worker.chain_id, worker._since = "1abc_A", -1e9
    theirs.send("2def_B")
    worker.enforce(DEADLINE)
    assert not killed
    assert worker.connection.recv() == "2def_B"
    worker.enforce(DEADLINE)
    assert killed == [worker]
    worker.connection.close()
    theirs.close()


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

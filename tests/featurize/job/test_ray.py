"""The job on Ray: the same bytes, and what becomes of a unit whatever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.featurize.job.stage import (
    Digests,
    configure_ray,
    local_ray,
    pids_by_command,
    run,
    run_forked,
    wait_until,
)
from tests.featurize.search.test_search import chains, fake_hh_database, fake_hhblits
from tests.inside import units_inside
from tests.synthetic_entries import prepare_again

from evofeed.base.errors import JobError
from evofeed.featurize import SearchOptions, run_search
from evofeed.featurize.job import JobReport
from evofeed.featurize.job.dispatch import open_executor
from evofeed.featurize.job.executors import Executor, ExecutorGone
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.ray_executor import RayExecutor
from evofeed.featurize.job.worker import UnitLost
from evofeed.synth import write_entries

pytestmark = [pytest.mark.system]

ACTS = """
import os, signal, time
from dataclasses import dataclass

@dataclass
class Act:
    unit_id: str
    act: str = ""
    expected_memory: int = 0
    dataset_uri: str = ""

    def work(self, set_current):
        set_current(f"chain of {self.unit_id}")
        if self.act == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.act == "kill its watcher":
            os.kill(os.getppid(), signal.SIGKILL)
        while self.act and not os.path.exists(self.act):
            time.sleep(0.02)
        return self
"""
"""Units that crash or hang whoever works on them, or wait until there is a file."""
DRIVER = """
import sys
from pathlib import Path
from tests.featurize.job.stage import block_call, run
from evofeed.featurize.job import Ledger

block_call(Path("never"), Ledger, "finish")
run(Path(sys.argv[1]), Path(sys.argv[2]), executor="ray", ray_address=sys.argv[3])
"""
"""A driver in an interpreter of its own, held still once a unit is done."""


@pytest.fixture
def acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers find the units that do as they are asked."""
    (tmp_path / "evofeed_test_acts.py").write_text(ACTS)
    monkeypatch.syspath_prepend(str(tmp_path))


def act(unit_id: str, action: object = "", **needs: Any) -> Any:
    from evofeed_test_acts import Act  # type: ignore[import-not-found]

    return Act(unit_id, str(action), **needs)


def outcome_of(executor: Executor, *tasks: Any) -> Any:
    """What becomes of the one unit there is."""
    for task in tasks:
        executor.submit(task)
    while not (outcomes := executor.wait(1.0)):
        pass
    (outcome,) = outcomes
    return outcome


def test_a_job_that_starts_a_ray_loses_workers_then_its_raylet_and_is_taken_up_without_ray(
    raw: Path, tmp_path: Path, undisturbed: Digests
) -> None:
    """Workers are killed as soon as there are some: Ray's first, and one of ours."""
    printed = tmp_path / "printed"
    killed: list[str] = []

    def kill(word: str) -> None:
        for pid in pids_by_command(word)[:1]:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(pid, signal.SIGKILL)
                killed.append(word)

    def kill_next(_: Any) -> None:
        if "default_worker.py\0" not in killed:
            kill("default_worker.py\0")
        if "worker.main" not in killed:
            kill("worker.main")
        elif "raylet/raylet" not in killed and (alive := pids_by_command("worker.main")):
            os.kill(alive[0], signal.SIGSTOP)  # its unit does not end: Ray is to be missed
            kill("raylet/raylet")
            wait_until(lambda: not pids_by_command("raylet/raylet"))
            for pid in (*pids_by_command("ray::"), *alive):  # nobody can start them again
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def on_a_ray(tries: int) -> JobReport:
        try:
            return run(raw, tmp_path / "data", executor="ray", workers=1, progress=kill_next)
        except JobError as error:  # Ray gives a node 30 seconds, which a busy machine may not have
            if tries == 1 or "cannot join Ray" not in str(error):
                raise
            return on_a_ray(tries - 1)

    def reports() -> tuple[JobReport, JobReport]:
        with printed.open("wb") as file:  # whatever Ray writes, past `sys.stdout` too
            os.dup2(file.fileno(), 1)
        sys.stdout = os.fdopen(1, "w", buffering=1)
        configure_ray()
        failed = on_a_ray(3)
        assert {"worker.main", "raylet/raylet"} <= set(killed)
        wait_until(lambda: not pids_by_command("gcs/gcs_server"))
        return failed, run(raw, tmp_path / "data")

    failed, report = run_forked(reports)
    assert "is gone: its raylet d" in failed.message
    assert failed.message.endswith("finished work is kept: run it again once Ray is back")
    assert (failed.exit_code, failed.broken) == (1, ()) and failed.lost_workers
    assert report.snapshot == undisturbed.snapshot
    assert printed.read_bytes() == b"", "standard output is for the report"


def test_a_ray_of_the_callers_own_is_used_and_left_whatever_units_and_drivers_do(
    raw: Path, tmp_path: Path, undisturbed: Digests, acts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, data = tmp_path / "seen", tmp_path / "data"
    write_entries(tmp_path / "raw", 1, residues=8)
    fake_hhblits(tmp_path / "bin", 'cp "$in" "$out"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def entries_and_search(out: str, **options: Any) -> list[str | None]:
        made = prepare_again(tmp_path / "raw", tmp_path / out, options, projects=("boltz",))
        search = chains("ACDEF"), str(tmp_path / out), [fake_hh_database(tmp_path / "db")]
        report = run_search(*search, options=SearchOptions(**options))
        return [made.snapshot, report.digest]

    def outcomes() -> tuple[list[Any], JobReport, list[str | None]]:
        with local_ray(1) as ray:
            address = ray.get_runtime_context().gcs_address
            joined = subprocess.Popen([sys.executable, "-c", DRIVER, raw, data, address])
            wait_until(lambda: joined.poll() or list(data.glob("shards/*.arrow")))
            joined.kill()
            assert joined.wait() == -signal.SIGKILL
            wait_until(lambda: not pids_by_command("worker.main"))
            report = run(raw, data, executor="ray", ray_address=address, workers=1)
            others = entries_and_search("ray", executor="ray", ray_address=address)

            with contextlib.closing(RayExecutor(0, 2.0, address)) as executor:
                actions = ["", "crash", tmp_path / "never", "kill its watcher"]
                results = [outcome_of(executor, act(str(n), a)) for n, a in enumerate(actions)]
            total = ray.cluster_resources()["memory"]
            with contextlib.closing(open_executor(JobOptions())) as here:
                here.submit(act("held", seen, expected_memory=256 << 20), resource="db:here")
                wait_until(lambda: ray.available_resources()["memory"] <= total - (256 << 20))
                assert ray.available_resources()["db:here"] < 1, "it went to a node that has it"
                assert here.room("db:here") == 1
                seen.touch()
                results.append(outcome_of(here).unit_id)
                here.submit(act("anywhere"), resource="db:none")
                results.append(outcome_of(here).unit_id)
            assert ray.cluster_resources()["CPU"] == 1, "it is left running"
            executor = RayExecutor(0, 3600.0, address, gcs_away=1.0)
            executor.submit(act("lost", tmp_path / "never"))
            os.kill(pids_by_command("gcs/gcs_server")[0], signal.SIGKILL)
            with pytest.raises(ExecutorGone, match=r"its GCS does not .* once Ray is back$"):
                while True:
                    executor.wait(1.0)
            executor.close()
        return results, report, others

    results, report, others = run_forked(outcomes)
    with units_inside():
        assert others == entries_and_search("here", executor="local")
    assert results == [
        act("0"),
        UnitLost("1", "chain of 1", "signal SIGSEGV"),
        UnitLost("2", "chain of 2", "deadline"),
        UnitLost("3", None, "WorkerCrashedError"),
        "held",
        "anywhere",
    ]
    assert report.snapshot == undisturbed.snapshot


def test_a_ray_that_cannot_be_joined_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def init(*_: Any, **__: Any) -> None:
        raise RuntimeError("no running Ray\nand more")

    monkeypatch.setattr(ray, "init", init)
    why = r"cannot join Ray at auto: no running Ray; run `ray start --head` on this machine first"
    with pytest.raises(JobError, match=why):
        open_executor(JobOptions(executor="ray"))


def test_a_cluster_that_is_not_there_is_reported_at_once() -> None:
    import ray

    with socket.socket() as taken:  # bound and not listening: nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises(JobError, match=rf"cannot join Ray at {address}: nothing answers"):
            RayExecutor(2, 60.0, address)
    assert not ray.is_initialized()

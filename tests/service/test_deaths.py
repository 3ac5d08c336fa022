"""A job whose process is killed goes on until it is done; one that gets nowhere is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from tests.service.conftest import Start

from evofeed.base.errors import JobError
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs import runner, scheduler
from evofeed.service.jobs.queue import MAX_DEATHS, JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.refs import Refs
from evofeed.synth import write_synthetic


class World:
    """A queue with one job, and the scheduler that would see its processes off."""

    def __init__(self, start: Start, tmp_path: Path) -> None:
        self.client = start(datasets={"out": str(tmp_path / "out")})
        self.database = start.database
        self.queue = JobQueue(self.database, 100)
        self.scheduler = Scheduler(self.queue, start.settings[-1])
        raw = str(tmp_path / "raw")
        write_synthetic(raw, 2, seed=0)
        body = {"dataset": "out", "input_uri": raw, "executor": "local", "workers": 1}
        self.job = str(self.client.post("/v1/jobs", json=body).json()["id"])

    def run(self, code: int, good: int = 0, *, by_others: bool = False) -> str:
        """The job's state after a run that did so much and whose process ended so."""
        assert self.queue.claim(1) == self.job
        if good:
            self.queue.heartbeat(self.job, {"good": good, "broken": 0})
        self.scheduler._settle(self.job, self.view()["attempts"], code, by_others)
        return str(self.view()["state"])

    def view(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{self.job}").json()
        return found


@pytest.fixture
def world(start: Start, tmp_path: Path, jobs_wait: None) -> World:
    return World(start, tmp_path)


def test_a_job_that_gets_further_is_never_left(world: World) -> None:
    for number in range(3 * MAX_DEATHS):
        assert world.run(-9, good=1 + number // 4) == "queued", number


def test_a_job_that_dies_again_and_again_at_one_place_is_left(world: World) -> None:
    states = [world.run(-11, good=7) for _ in range(MAX_DEATHS)]
    assert states == ["queued"] * (MAX_DEATHS - 1) + ["failed"]
    assert f"{MAX_DEATHS} times in a row without getting any further" in world.view()["error"]
    assert world.client.post(f"/v1/jobs/{world.job}/retry").status_code == 202
    states = [world.run(-11, good=7) for _ in range(MAX_DEATHS)]
    assert states == ["queued"] * (MAX_DEATHS - 1) + ["failed"], "its owner's retry begins at 0"


def test_what_others_do_to_a_job_is_not_counted_against_it(world: World) -> None:
    for _ in range(2 * MAX_DEATHS):
        assert world.run(-9, by_others=True) == "queued", "killed"
        assert world.run(jobs.AWAY) == "queued", "its database was away"


def test_the_end_of_an_earlier_process_is_not_taken_for_the_present_one(world: World) -> None:
    assert world.run(-9) == "queued"
    assert world.queue.claim(1) == world.job
    world.scheduler._settle(world.job, 1, -9, False)
    assert (world.view()["state"], world.view()["attempts"]) == ("running", 2)


def test_an_earlier_process_that_wakes_up_writes_nothing_and_stops(world: World) -> None:
    assert world.queue.claim(1) == world.job
    silent = JobQueue(world.database, 100, silence=0.0)
    time.sleep(0.01)
    assert silent.claim(1) == world.job and world.view()["attempts"] == 2
    chain = {"kind": "broken", "chain_id": "x"}
    assert world.queue.heartbeat(world.job, {"good": 7}, [chain], attempt=1), "it is to stop"
    world.queue.end(world.job, jobs.CANCELLED, attempt=1)
    view = world.view()
    assert (view["state"], view["progress"]) == ("running", {})
    assert world.queue.chains(world.job, "broken", 0, 9) == (0, [])
    assert not world.queue.heartbeat(world.job, {"good": 1}, attempt=2)
    world.queue.end(world.job, jobs.SUCCEEDED, attempt=2)
    assert world.view()["state"] == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("start_any", ["postgres"], indirect=True)
def test_a_job_taken_up_while_its_first_process_sleeps_waits_for_it_and_ends_well(
    start_any: Start, tmp_path: Path, jobs_wait: None
) -> None:
    world = World(start_any, tmp_path)
    settings, processes = start_any.settings[-1], []

    def run(attempt: int) -> subprocess.Popen[bytes]:
        environment = os.environ | {
            "EVOFEED_DATABASE_URL": settings.url, "EVOFEED_HOME": str(settings.home),
            "EVOFEED_INPUT_ROOTS": json.dumps(settings.input_roots), "EVOFEED_AUTH": settings.auth,
        }  # fmt: skip
        command = [sys.executable, "-m", "evofeed.service.jobs.runner", world.job, str(attempt)]
        with (tmp_path / f"{attempt}.log").open("wb") as log:
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return processes[-1]

    def until(claim: Callable[[], Any]) -> None:
        end = time.monotonic() + 240
        while not claim():
            assert time.monotonic() < end and processes[-1].poll() is None, world.view()
            time.sleep(0.005)

    try:
        assert world.queue.claim(1) == world.job
        first = run(1)
        leases = tmp_path / "out" / "leases"
        until(lambda: leases.is_dir() and any(leases.iterdir()))  # it drives
        first.send_signal(signal.SIGSTOP)
        silent = JobQueue(world.database, 100, silence=0.0)
        until(lambda: silent.claim(1))
        second, begun = run(2), world.view()["updated_at"]
        until(lambda: world.view()["updated_at"] > begun)
        until(lambda: b"sleeps" in (tmp_path / "2.log").read_bytes())
        assert world.view()["state"] == "running"
        first.send_signal(signal.SIGCONT)
        assert second.wait(240) == 0 and first.wait(240) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert world.view()["state"] == "succeeded", world.view()["error"]
    assert world.view()["attempts"] == 2


def test_a_job_that_is_told_to_stop_before_it_hears_of_its_cancellation_is_cancelled(
    world: World,
) -> None:
    assert world.queue.claim(1) == world.job
    world.client.post(f"/v1/jobs/{world.job}/cancel")
    world.queue.end(world.job, jobs.QUEUED)
    assert world.view()["state"] == "cancelled"


def test_a_database_that_goes_away_fails_no_job(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []

    def gone(*_: object, **options: object) -> None:
        assert options["executor"] == "local"
        raise JobError("ledger: closed") from psycopg.OperationalError("server closed")

    def full(*_: object, **__: object) -> None:
        raise JobError("ledger: full") from psycopg.errors.DiskFull("no space left")

    main = runner.main
    monkeypatch.setattr(runner, "main", lambda job: codes.append(main(job)))
    for run, state in ((gone, "running"), (full, "failed")):
        monkeypatch.setattr(runner, "run_job", run)
        start.work_off()
        assert world.view()["state"] == state
        if state == "running":
            world.scheduler._settle(world.job, 1, codes[0], False)
    assert codes == [jobs.AWAY, 0]


def test_a_job_that_dies_once_it_has_moved_a_new_ref_ends_well_and_moved_it_once(
    world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, enter = [], Refs._enter

    def away(*_: object) -> None:
        monkeypatch.setattr(Refs, "_enter", enter)
        raise OperationalError("INSERT", {}, Exception()) from psycopg.OperationalError("closed")

    main = runner.main
    monkeypatch.setattr(runner, "main", lambda job: codes.append(main(job)))
    monkeypatch.setattr(Refs, "_enter", away)
    start.work_off()
    world.scheduler._settle(world.job, 1, codes[0], False)
    start.work_off()
    assert codes == [jobs.AWAY, 0] and world.view()["state"] == "succeeded", world.view()["error"]
    (move,) = world.client.get("/v1/datasets/out/refs/main/history").json()["moves"]
    assert (move["job"], move["digest"]) == (world.job, world.view()["result"]["snapshot"])


@pytest.mark.parametrize(
    ("how", "memory_kills", "by_others"),
    [
        ("kill -9 $$", 0, True),
        ("kill -9 $$", 1, False),  # the kernel has killed something meanwhile: maybe this
        ("kill -9 $$", None, False),  # it does not say
        ("kill -15 $$", 1, True),
        ("kill -11 $$", 0, False),
        ("exit 3", 0, False),
    ],
)
def test_who_ended_a_process_is_told_by_its_signal_and_the_kernels_count(
    how: str, memory_kills: int | None, by_others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_memory_kills", lambda: memory_kills)
    process = subprocess.Popen(["/bin/sh", "-c", how], start_new_session=True)
    process.wait(60)
    assert scheduler._Child(process, 0).see_off()[1] is by_others

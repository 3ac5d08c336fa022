"""Jobs run in children of the service, tell how far they are, stop, resume and are retried."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy.exc import OperationalError
from tests.service.conftest import Start

from evofeed.featurize.job import JobProgress
from evofeed.service import ServiceSettings, serving
from evofeed.service.database.database import Database
from evofeed.service.database.tables import JobRow
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs import scheduler
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.runner import _Pulse
from evofeed.service.settings import Timings
from evofeed.store import Dataset
from evofeed.synth import write_synthetic

ENDED = {"cancelled", "succeeded", "failed"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files of a few chains."""
    path = tmp_path_factory.mktemp("raw")
    write_synthetic(path, 6, seed=0)
    return path


def descendants() -> set[int]:
    """Processes below this one, as /proc has them now."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # gone meanwhile
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                parents[int(stat.parent.name)] = int(parent)
    found, news = set(), {os.getpid()}
    while news:
        news = {pid for pid, parent in parents.items() if parent in news}
        found |= news
    return found


def all_end(pids: set[int]) -> bool:
    """True once none of these runs any more; False after four minutes."""
    end = time.monotonic() + 240
    while any(running(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def submit(client: httpx.Client, raw: Path, **changes: Any) -> str:
    body = {"dataset": "out", "input_uri": str(raw), "executor": "local", "workers": 1}
    answer = client.post("/v1/jobs", json=body | changes)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_until(claim: Callable[[], Any]) -> None:
    end = time.monotonic() + 240
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def wait(client: httpx.Client, job_id: str, states: set[str] = ENDED) -> dict[str, Any]:
    end = time.monotonic() + 240
    while (job := client.get(f"/v1/jobs/{job_id}").json())["state"] not in states:
        assert time.monotonic() < end, job
        time.sleep(0.1)
    return dict(job)


@pytest.mark.slow
def test_a_job_publishes_a_snapshot_and_tells_its_progress(start_any: Start, raw, tmp_path) -> None:
    client = start_any(datasets={"out": str(tmp_path / "out")})
    job_id = submit(client, raw, preset="openfold", crop={"max_msa_rows": 16})
    events: list[tuple[str, dict[str, Any]]] = []
    with client.stream("GET", f"/v1/jobs/{job_id}/events", timeout=300) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                events.append((kind, json.loads(value)))
    assert events[-1] == ("end", {"state": "succeeded"})
    assert {kind for kind, _ in events[:-1]} == {"progress"}
    job = wait(client, job_id)
    assert job["result"]["num_good"] == 6 and job["result"]["num_broken"] == 0
    dataset = Dataset.open(tmp_path / "out")
    assert dataset.digest == job["result"]["snapshot"] and len(dataset) == 6
    assert max(dataset.index["num_alignments"].to_pylist()) == 16
    assert dataset.manifest.config["featurize"]["subfolders"] is False
    answer = client.get("/v1/datasets/out/refs/main")
    assert answer.json()["digest"] == dataset.digest
    log = client.get(f"/v1/jobs/{job_id}/log")
    assert log.status_code == 200 and "Traceback" not in log.text


@pytest.mark.slow
@pytest.mark.system
def test_a_job_runs_on_ray_and_leaves_no_process(start: Start, raw, tmp_path) -> None:
    client = start(datasets={"out": str(tmp_path / "out")})
    before = descendants()
    job_id = submit(client, raw, executor="ray")
    seen: set[int] = set()
    while client.get(f"/v1/jobs/{job_id}").json()["state"] not in ENDED:
        seen |= descendants() - before
        time.sleep(0.2)
    job = wait(client, job_id)
    assert (job["state"], job["result"]["num_good"]) == ("succeeded", 6), job
    assert seen and all_end(seen)


@pytest.fixture
def held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs that were started do nothing until this file is there."""
    mark, python = tmp_path / "mark", tmp_path / "python"
    wait_first = f'until [ -e "{mark}" ]; do sleep 0.05; done; exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\n{wait_first}\n")
    python.chmod(0o700)
    monkeypatch.setattr(scheduler, "sys", SimpleNamespace(executable=str(python)))
    return mark


@pytest.mark.slow
def test_a_job_that_waits_or_runs_can_be_cancelled_and_leaves_no_process(
    start: Start, raw, tmp_path, held_back: Path
) -> None:
    before = descendants()
    client = start(
        datasets={"out": str(tmp_path / "out"), "other": str(tmp_path / "other")},
        timings=Timings(job_silence=1e9),
    )
    running = submit(client, raw)
    waiting = submit(client, raw, dataset="other")
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["state"] == "cancelled"
    wait(client, running, {"running"})
    in_use = client.delete("/v1/datasets/out")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "dataset_in_use")
    assert client.post(f"/v1/jobs/{running}/retry").status_code == 409
    wait_until(lambda: descendants() - before)
    children = descendants() - before
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202
    held_back.touch()
    assert wait(client, running)["state"] in ("cancelled", "succeeded")
    assert children and all_end(children)
    listed = client.get("/v1/jobs").json()["jobs"]
    assert [job["id"] for job in listed] == [waiting, running]
    first = client.get("/v1/jobs?limit=1").json()
    assert first["next"] and first["jobs"][0]["id"] == waiting
    rest = client.get("/v1/jobs", params={"before": first["next"]}).json()
    assert [job["id"] for job in rest["jobs"]] == [running]


@pytest.mark.slow
def test_a_job_outlives_its_service_and_continues_where_it_was(raw, tmp_path) -> None:
    settings = ServiceSettings(
        home=tmp_path,
        database_url=SecretStr(""),
        port=0,
        auth="off",
        datasets={"out": str(tmp_path / "out")},
    )
    with serving(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        job_id = submit(client, raw)
        wait(client, job_id, {"running", *ENDED})
    with Database(settings.url).read() as session:
        row = session.get(JobRow, job_id)
        assert row is not None and row.state in ("queued", "succeeded")
    with serving(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        assert wait(client, job_id)["state"] == "succeeded"
    assert len(Dataset.open(tmp_path / "out")) == 6


def test_an_input_without_a_chain_fails_the_job_with_its_reason(start: Start, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    client = start(datasets={"out": str(tmp_path / "out")})
    job = wait(client, submit(client, tmp_path / "empty"))
    assert job["state"] == "failed" and job["error"]


MALFORMED: list[dict[str, Any]] = [
    {"executor": "shell"}, {"entrypoint": "rm -rf /"}, {"workers": -1}, {"input_uri": ""},
    {"input_uri": "x\x00y"}, {"max_broken": 2}, {"preset": "fast"},
    *({"config": config} for config in (
        {"no_such_field": 1}, {"max_templates": "many"}, {"min_align_ratio": 10**400},
        {"hit_names": "mine"}, {"caps": 3}, {"caps": {"max_rows": []}},
    )),
    {"crop": {"max_msa_rows": 0}}, {"crop": {"views": "x"}},
]  # fmt: skip


def test_a_malformed_job_is_refused(start: Start, tmp_path) -> None:
    client = start(datasets={"out": str(tmp_path)}, max_jobs=1)
    body = {"dataset": "out", "input_uri": "/raw", "executor": "local"}
    for change in MALFORMED:
        assert client.post("/v1/jobs", json=body | change).status_code == 422, change
    assert client.post("/v1/jobs", json=body | {"dataset": "nowhere"}).status_code == 404
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_a_full_queue_and_a_service_without_jobs_say_so(start: Start, tmp_path) -> None:
    assert start(datasets={"out": str(tmp_path)}, max_jobs=0).post(
        "/v1/jobs", json={"dataset": "out", "input_uri": "/x"}
    ).json()["code"] == "no_jobs"  # fmt: skip
    database = Database(f"sqlite:///{tmp_path / 'q.sqlite3'}")
    database.upgrade()
    from evofeed.service.problems import Problem
    from evofeed.service.snapshots.catalog import Catalog

    dataset = Catalog(database).register("d", "/d")
    queue = JobQueue(database, max_queued=2)
    first, _ = (queue.submit(dataset, {}, "me") for _ in range(2))
    with pytest.raises(Problem, match="wait already") as refused:
        queue.submit(dataset, {}, "me")
    assert refused.value.status == 429
    assert queue.claim(1) == first.id
    assert queue.claim(1) is None and queue.claim(9) is None  # one at a time for a dataset
    with pytest.raises(Problem, match="not ended"):
        queue.requeue(first.id, "me")
    database.close()


def test_a_job_whose_process_fell_silent_is_queued_again(tmp_path) -> None:
    from evofeed.service.snapshots.catalog import Catalog

    database = Database(f"sqlite:///{tmp_path / 'q.sqlite3'}")
    database.upgrade()
    queue = JobQueue(database, max_queued=2)
    job = queue.submit(Catalog(database).register("d", "/d"), {}, "me")
    assert queue.claim(1) == job.id
    with database.write() as session:
        row = session.get(JobRow, job.id)
        assert row is not None
        row.updated_at -= 61
    assert queue.claim(1) == job.id
    assert queue.get(job.id)[0].attempts == 2
    database.close()


def test_a_heart_beats_on_after_the_database_was_busy() -> None:
    class Busy:
        beats = 0

        def heartbeat(self, *_: object, attempt: int | None) -> bool:
            self.beats += 1
            if self.beats == 1:
                raise OperationalError("UPDATE jobs", {}, Exception("database is locked"))
            return True  # it is asked to stop

    pulse = _Pulse(Busy(), "job")  # type: ignore[arg-type]
    with pulse:
        wait_until(lambda: pulse.stop_state == jobs.CANCELLED)


def test_a_job_hears_that_its_service_stops(tmp_path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'q.sqlite3'}")
    pulse = _Pulse(JobQueue(database, 1), "0" * 16)
    here = JobProgress(
        num_chains=2,
        good=1,
        broken=0,
        suspects=0,
        share=0.5,
        chains_per_second=1.0,
        seconds_left=1.0,
    )
    before = signal.signal(signal.SIGTERM, pulse.on_sigterm)
    try:
        pulse.progress(here)
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            pulse.progress(here)
    finally:
        signal.signal(signal.SIGTERM, before)
        database.close()
    assert pulse.stop_state == jobs.QUEUED

"""Jobs run in children of the service, tell how far they are, stop, resume and are retried."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest
from pydantic import SecretStr
from sqlalchemy import select
from sqlalchemy.exc import OperationalError
from tests.featurize.job.stage import wait_until as until
from tests.featurize.search.family import family, fasta
from tests.service.conftest import Start, id_of, until_trusted

from evofeed.featurize.job import run
from evofeed.featurize.search import RECIPES
from evofeed.featurize.search.programs import descendants
from evofeed.service import ServiceSettings, serving, state
from evofeed.service.access.auth import revoke_token
from evofeed.service.database.database import Database
from evofeed.service.database.tables import AuditRow, JobRow
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs import scheduler
from evofeed.service.jobs.config import checked_config
from evofeed.service.jobs.queue import ENDED, JobQueue
from evofeed.service.jobs.runner import _Pulse
from evofeed.service.problems import Problem
from evofeed.service.routes.jobs import Recipe
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store import Dataset
from evofeed.synth import write_synthetic


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw files of a few chains."""
    path = tmp_path_factory.mktemp("raw")
    write_synthetic(path, 6, seed=0)
    return path


def submit(client: httpx.Client, raw: Path, **changes: Any) -> str:
    body = {"dataset": "out", "input_uri": str(raw), "executor": "local", "workers": 1}
    answer = client.post("/v1/jobs", json=body | changes)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def wait_for_job(client: httpx.Client, job_id: str, *states: str) -> dict[str, Any]:
    """A job in one of these states: one that has ended, unless told otherwise."""
    until(lambda: client.get(f"/v1/jobs/{job_id}").json()["state"] in (states or ENDED))
    return dict(client.get(f"/v1/jobs/{job_id}").json())


@pytest.mark.slow
def test_a_job_outlives_its_service_tells_its_progress_and_publishes(raw, tmp_path) -> None:
    settings = ServiceSettings(
        home=tmp_path, database_url=SecretStr(""), port=0, auth="off",
        datasets={"out": str(tmp_path / "out")},
    )  # fmt: skip
    with serving(settings) as url, httpx.Client(base_url=url, timeout=60) as client:
        job_id = submit(client, raw, preset="openfold", crop={"max_msa_rows": 16})
        wait_for_job(client, job_id, "running", *ENDED)
    with Database(settings.url).read() as session:
        row = session.get(JobRow, job_id)
        assert row is not None and row.state in ("queued", "succeeded")
    with serving(settings) as url, httpx.Client(base_url=url, timeout=300) as client:
        with client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = list(stream.iter_lines())
        assert lines[-3:-1] == ["event: end", 'data: {"state": "succeeded"}']
        assert set(filter(str.strip, lines[:-3])) >= {"event: progress"}
        job = wait_for_job(client, job_id)
        assert (job["result"]["num_good"], job["result"]["num_broken"]) == (6, 0)
        dataset = Dataset.open(tmp_path / "out")
        assert dataset.digest == job["result"]["snapshot"] and len(dataset) == 6
        assert max(dataset.index["num_alignments"].to_pylist()) == 16
        assert dataset.manifest.config["featurize"]["subfolders"] is False
        assert client.get("/v1/datasets/out/refs/main").json()["digest"] == dataset.digest
        log = client.get(f"/v1/jobs/{job_id}/log")
        assert log.status_code == 200 and "Traceback" not in log.text
        assert "INFO attempt" in log.text and "6 good" in log.text


def test_a_job_with_a_recipe_searches_its_sequences_first(
    start: Start, tmp_path: Path, jobs_wait: None
) -> None:
    query, *kin = family(1, 6, 60)
    asked = fasta(tmp_path / "q.fasta", [("one", query), ("two", query[5:]), ("bad:id", query)])
    rows = fasta(tmp_path / "uniref90.fasta", [(f"k{n}", s) for n, s in enumerate(kin)])
    client = start(
        datasets={"out": str(tmp_path / "out")}, input_roots=(str(tmp_path),),
        job_databases={"uniref90": rows, "other": "/no/role/in/it"},
    )  # fmt: skip
    new = {"dataset": "out", "input_uri": asked, "recipe": "af9"}
    assert client.post("/v1/jobs", json=new).status_code == 422
    job_id = submit(client, Path(asked), recipe="af2", max_broken=0.5)
    start.work_off()
    job = client.get(f"/v1/jobs/{job_id}").json()
    assert job["state"] == "succeeded", job["error"]
    assert (job["result"]["num_good"], job["result"]["num_broken"]) == (2, 1)
    (broken,) = client.get(f"/v1/jobs/{job['id']}/dead-letters").json()["chains"]
    assert "bad:id" in broken["message"]
    assert Dataset.open(tmp_path / "out")["one"].num_alignments == 6
    assert set(get_args(Recipe)) == {"", *RECIPES}


@pytest.fixture
def held_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Jobs that were started do nothing until this file is there."""
    mark, python = tmp_path / "mark", tmp_path / "python"
    wait_first = f'until [ -e "{mark}" ]; do sleep 0.05; done; exec {sys.executable} "$@"'
    python.write_text(f"#!/bin/sh\n{wait_first}\n")
    python.chmod(0o700)
    monkeypatch.setattr(scheduler, "sys", SimpleNamespace(executable=str(python)))
    monkeypatch.setattr(state, "JobQueue", partial(JobQueue, silence=1e9))
    return mark


@pytest.mark.slow
def test_a_job_that_waits_or_runs_can_be_cancelled_and_leaves_no_process(
    start: Start, raw, tmp_path, held_back: Path
) -> None:
    before = set(descendants(os.getpid()))
    client = start(datasets={"out": str(tmp_path / "out"), "other": str(tmp_path / "other")})
    running = submit(client, raw)
    waiting = submit(client, raw, dataset="other")
    assert client.post(f"/v1/jobs/{waiting}/cancel").json()["state"] == "cancelled"
    wait_for_job(client, running, "running")
    in_use = client.delete("/v1/datasets/out")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "dataset_in_use")
    assert client.post(f"/v1/jobs/{running}/retry").status_code == 409
    until(lambda: set(descendants(os.getpid())) - before)
    children = set(descendants(os.getpid())) - before
    assert client.post(f"/v1/jobs/{running}/cancel").status_code == 202
    held_back.touch()
    assert wait_for_job(client, running)["state"] in ("cancelled", "succeeded")
    until(lambda: not children & set(descendants(os.getpid())))
    listed = client.get("/v1/jobs").json()["jobs"]
    assert [job["id"] for job in listed] == [waiting, running]
    first = client.get("/v1/jobs?limit=1").json()
    assert first["next"] and first["jobs"][0]["id"] == waiting
    rest = client.get("/v1/jobs", params={"before": first["next"]}).json()
    assert [job["id"] for job in rest["jobs"]] == [running]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(f"sqlite:///{tmp_path / 'q.sqlite3'}") as made:
        made.upgrade()
        yield made


def test_a_full_queue_says_so_and_a_dataset_has_one_job_at_a_time(database: Database) -> None:
    dataset = Catalog(database).register("d", "/d")
    queue = JobQueue(database, max_queued=2)
    first, _ = (queue.submit(dataset, {}, "me") for _ in range(2))
    with pytest.raises(Problem, match="wait already") as refused:
        queue.submit(dataset, {}, "me")
    assert refused.value.status == 429
    assert queue.claim(1) == first.id
    assert queue.claim(1) is None and queue.claim(9) is None
    with pytest.raises(Problem, match="not ended"):
        queue.requeue(first.id, "me")
    with database.write() as session:
        session.get_one(JobRow, first.id).updated_at -= 61
    assert queue.claim(1) == first.id, "its process fell silent"
    assert queue.get(first.id)[0].attempts == 2


@pytest.fixture
def idle(start_any: Start, tmp_path: Path, jobs_wait: None) -> httpx.Client:
    """A service whose jobs wait."""
    return start_any(datasets={"out": str(tmp_path / "out")})


def test_a_job_tells_what_it_could_not_do_until_a_retry_has_done_it(
    start: Start, tmp_path: Path, jobs_wait: None, caplog
) -> None:
    idle = start(datasets={"out": str(tmp_path / "out")})
    write_synthetic(tmp_path / "raw", 3, seed=1)
    victim = sorted((tmp_path / "raw").rglob("*.a3m"))[0]
    whole = victim.read_bytes()
    victim.write_bytes(b">only\nAC\n>ragged\nACDEFGHIKL\n")
    odd = victim.parent.parent / "<img src=x onerror=alert(1)>_A"
    odd.mkdir()
    (odd / victim.name).write_bytes(b">q\nACDE\n")
    first = submit(idle, tmp_path / "raw", max_broken=0.1)
    second = submit(idle, tmp_path / "raw", max_broken=0.9)
    start.work_off()

    def letters(job: str) -> list[str]:
        page = idle.get(f"/v1/jobs/{job}/dead-letters").json()
        assert page["total"] == len(page["chains"])
        return sorted(chain["chain_id"] for chain in page["chains"])

    def view(job: str) -> dict[str, Any]:
        return dict(idle.get(f"/v1/jobs/{job}").json())

    assert (view(first)["state"], view(second)["state"]) == ("failed", "succeeded")
    broken = letters(first)
    assert len(broken) == 2 and any("img" in name for name in broken), "refused inputs too"
    assert letters(second) == broken and view(second)["result"]["snapshot"]
    assert "max_broken" in view(first)["error"] and "--" not in view(first)["error"]
    for expected in ("cancelled", "succeeded"):
        assert idle.post(f"/v1/jobs/{second}/retry").status_code == 202
        if expected == "cancelled":
            assert idle.post(f"/v1/jobs/{second}/cancel").json()["state"] == "cancelled"
            assert letters(first) == letters(second) == broken
    victim.write_bytes(whole)
    caplog.clear()
    start.work_off()
    assert view(second)["result"]["num_good"] == 3 and view(second)["attempts"] == 2
    assert len(letters(second)) == 1 and letters(first) == broken
    lines = [r.getMessage() for r in caplog.records if r.name == "evofeed.service.runner"]
    (told,) = [n for n, line in enumerate(lines) if line.startswith("broken")]
    (written,) = [n for n, line in enumerate(lines) if line.startswith("snapshot")]
    assert letters(second)[0] in lines[told] and told < written, "while it runs"


def test_what_a_job_says_is_there_while_it_runs(idle: httpx.Client, start_any: Start) -> None:
    queue = JobQueue(start_any.database, 9)
    job = submit(idle, Path("/raw"))
    assert queue.claim(1) == job
    note = {"kind": "note", "chain_id": "1abc_A", "type": "", "message": "3 passed over\x00"}
    broken = note | {"kind": "broken", "message": "ragged", "path": "x\ud800.a3m", "line": 3}
    queue.heartbeat(job, {"broken": 1}, [note, broken])
    seen = idle.get(f"/v1/jobs/{job}/dead-letters").json()
    assert (seen["total"], seen["chains"][0]["line"]) == (1, 3)
    notes = idle.get(f"/v1/jobs/{job}/notes").json()
    assert notes["chains"][0]["message"].startswith("3 passed over")


def test_old_jobs_and_lines_of_the_audit_are_forgotten_and_young_ones_are_not(
    idle: httpx.Client, start_any: Start
) -> None:
    database = start_any.database
    queue = JobQueue(database, 9)
    old, young = submit(idle, Path("/a")), submit(idle, Path("/b"))
    while job := queue.claim(1):
        queue.end(job, "failed", error="x")
    with database.write() as session:
        session.get_one(JobRow, old).updated_at -= 100
        lines = list(session.scalars(select(AuditRow).order_by(AuditRow.id)))
        lines[0].at -= 1000
    assert queue.prune(time.time() - 50) == [old]
    assert idle.get(f"/v1/jobs/{old}").status_code == 404
    assert idle.get(f"/v1/jobs/{young}").json()["error"] == "x"
    queue.prune_audit(time.time() - 500)
    with database.read() as session:
        left = list(session.scalars(select(AuditRow).order_by(AuditRow.id)))
    assert left[0].id == lines[1].id and (left[-1].action, left[-1].subject) == ("audit.prune", "1")


def test_two_services_run_no_two_jobs_of_one_dataset(idle: httpx.Client, start_any: Start) -> None:
    database = start_any.database
    for n in range(6):
        submit(idle, Path(f"/{n}"))

    def work(_: int) -> list[int]:
        queue, seen = JobQueue(database, 9), []
        for _ in range(4):
            if job := queue.claim(2):
                seen.append(len(idle.get("/v1/jobs?state=running").json()["jobs"]))
                queue.end(job, "succeeded")
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = [count for counts in pool.map(work, range(4)) for count in counts]
    assert seen and set(seen) <= {0, 1}


def test_a_job_asks_for_no_more_than_the_operator_allows(start: Start, tmp_path: Path) -> None:
    """What is ill-formed is refused too: `data/refused.yaml`."""
    client = start(datasets={"out": str(tmp_path)}, max_jobs=0)
    refused = client.post("/v1/jobs", json={"dataset": "out", "input_uri": "/raw"})
    assert refused.json()["code"] == "no_jobs" and client.get("/v1/jobs").json()["jobs"] == []
    more = {"max_rows": 9_000_000}
    assert checked_config("safe", {"caps": more}, more)
    with pytest.raises(Problem, match="allows"):
        checked_config("safe", {"caps": {"max_rows": 9_000_001}}, more)


def test_the_log_of_a_job_names_file_and_line_of_what_broke_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "evofeed.service.runner")
    broken = {"kind": "broken", "message": "neither JSON nor YAML"}
    entries = [
        broken | {"chain_id": "a.json", "path": "a.json", "line": None},
        broken | {"chain_id": "1abc_A", "path": "x.a3m", "line": 3},
    ]
    _Pulse(SimpleNamespace(), "1").report_chains(entries)  # type: ignore[arg-type]
    assert caplog.messages == [
        "broken a.json: neither JSON nor YAML",
        "broken 1abc_A: x.a3m:3: neither JSON nor YAML",
    ]


def test_what_a_job_says_names_no_flag() -> None:
    """Who sent it over HTTP has no command line; what `evofeed featurize` shows is elsewhere."""
    shown = {"show.py", "commands.py", "ray_executor.py"}
    for path in sorted(Path(run.__file__).parent.glob("*.py")):
        constants = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        texts = [text for text in constants if re.search(r"(^|\s)--[a-z]|same command", text)]
        assert path.name in shown or all("`ray start" in text for text in texts), (path.name, texts)


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
        until(lambda: pulse.stop_state == jobs.CANCELLED)


def test_events_are_numbered_and_dated_and_end_with_the_job_or_the_token(
    start: Start, tmp_path: Path, jobs_wait: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evofeed.service.routes.jobs._LOOK_SECONDS", 0.02)
    start(auth="on", datasets={"out": str(tmp_path / "out")}, input_roots=(str(tmp_path),))
    text, queue = start.token("read", "jobs", "publish"), JobQueue(start.database, 100)
    own, new = start.client(text), {"dataset": "out", "input_uri": str(tmp_path)}
    job, other = (own.post("/v1/jobs", json=new).json()["id"] for _ in range(2))
    stranger = start.as_("read", "jobs", datasets=["mine"])
    for path in ("", "/log", "/events", "/notes", "/dead-letters"):
        hidden, none = (stranger.get(f"/v1/jobs/{one}{path}") for one in (job, "0" * 16))
        assert (hidden.status_code, hidden.text) == (404, none.text.replace("0" * 16, job))
    with own.stream("GET", f"/v1/jobs/{job}/events") as stream:
        lines = stream.iter_lines()
        first = [next(lines) for _ in range(3)]
        assert queue.claim(1) == job
        queue.end(job, jobs.CANCELLED)
        rest = list(lines)
    assert first[:2] == ["id: 1", "event: progress"]
    seen = json.loads(first[2].removeprefix("data: "))
    assert seen["state"] == "queued" and seen["updated_at"].startswith("20")
    numbers = [int(line[4:]) for line in rest if line.startswith("id: ")]
    assert numbers == list(range(2, 2 + len(numbers)))
    assert rest[-3:-1] == ["event: end", 'data: {"state": "cancelled"}']
    with own.stream("GET", f"/v1/jobs/{other}/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "id: 1"
        revoke_token(start.database, id_of(text))
        until_trusted()
        assert "event: end" not in list(lines), "cut off: nothing says how the job is"
    assert own.get(f"/v1/jobs/{other}").status_code == 401

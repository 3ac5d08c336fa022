"""What a job did, broke and said is kept, run by run, and shared with no other job."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select
from tests.service.conftest import Start, work_off

from evofeed.featurize.job import JobHost, run, run_job
from evofeed.service.database.tables import AuditRow, JobRow
from evofeed.service.jobs.config import checked_config, cores
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.problems import Problem
from evofeed.synth import write_synthetic


@pytest.fixture
def broken_raw(tmp_path: Path) -> Path:
    """Input with four chains, one of them broken, and a folder whose name is no chain's."""
    raw = tmp_path / "raw"
    write_synthetic(raw, 4, seed=1)
    victim = sorted(raw.rglob("*.a3m"))[0]
    victim.rename(tmp_path / "whole.a3m")
    victim.write_bytes(b">only\nAC\n>ragged\nACDEFGHIKL\n")
    odd = victim.parent.parent / "<img src=x onerror=alert(1)>_A"
    odd.mkdir()
    (odd / victim.name).write_bytes(b">q\nACDE\n")
    return raw


@pytest.fixture
def idle(start_any: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> httpx.Client:
    """A service whose jobs wait for `work_off`."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    return start_any(datasets={"out": str(tmp_path / "out")})


def submit(client: httpx.Client, raw: Path, **changes: Any) -> str:
    body = {"dataset": "out", "input_uri": str(raw), "executor": "local", "workers": 1}
    answer = client.post("/v1/jobs", json=body | changes)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def test_jobs_of_one_input_keep_their_own_runs_and_dead_letters(
    idle: httpx.Client, start_any: Start, broken_raw: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    first = submit(idle, broken_raw, max_broken=0.1)
    second = submit(idle, broken_raw, max_broken=0.9)
    work_off(start_any, monkeypatch)

    def letters(job: str, **params: Any) -> list[str]:
        page = idle.get(f"/v1/jobs/{job}/dead-letters", params=params).json()
        assert page["total"] == len(page["chains"])
        return sorted(chain["chain_id"] for chain in page["chains"])

    def view(job: str) -> dict[str, Any]:
        found: dict[str, Any] = idle.get(f"/v1/jobs/{job}").json()
        return found

    assert (view(first)["state"], view(second)["state"]) == ("failed", "succeeded")
    broken = letters(first)
    assert len(broken) == 2 and any("img" in name for name in broken), "refused inputs too"
    assert letters(second) == broken
    assert "max_broken" in view(first)["error"] and "--" not in view(first)["error"]

    victim = sorted(broken_raw.rglob("*.a3m"))[0]
    done = view(second)["result"]
    assert idle.post(f"/v1/jobs/{second}/retry").status_code == 202
    assert idle.post(f"/v1/jobs/{second}/cancel").json()["state"] == "cancelled"
    assert letters(first) == broken and letters(second) == broken
    (kept,) = idle.get(f"/v1/jobs/{second}/attempts").json()["attempts"]
    assert kept["result"] == done and kept["state"] == "succeeded"
    assert kept["ended_at"] >= kept["started_at"] and done["snapshot"]

    victim.write_bytes((broken_raw.parent / "whole.a3m").read_bytes())
    assert idle.post(f"/v1/jobs/{second}/retry").status_code == 202
    work_off(start_any, monkeypatch)
    assert view(second)["result"]["num_good"] == 4, view(second)
    assert len(letters(second)) == 1 and letters(second, attempt=1) == broken
    attempts = idle.get(f"/v1/jobs/{second}/attempts").json()["attempts"]
    assert [attempt["number"] for attempt in attempts] == [2, 1]
    lines = [r.getMessage() for r in caplog.records if r.name == "evofeed.service.runner"]
    assert any(line.startswith("broken") and broken[1] in line for line in lines)


def test_notes_on_good_chains_have_a_route(idle: httpx.Client, start_any: Start) -> None:
    queue = JobQueue(start_any.database(), 9)
    job = submit(idle, Path("/raw"))
    assert queue.claim(1) == job
    note = {"kind": "note", "chain_id": "1abc_A", "type": "", "message": "3 passed over\x00"}
    broken = note | {"kind": "broken", "message": "ragged", "path": "x\ud800.a3m", "line": 3}
    queue.heartbeat(job, {"broken": 1}, [note, broken])
    seen = idle.get(f"/v1/jobs/{job}/dead-letters").json()
    assert (seen["total"], seen["chains"][0]["line"]) == (1, 3), "while it runs"
    assert idle.get(f"/v1/jobs/{job}").json()["state"] == "running"
    notes = idle.get(f"/v1/jobs/{job}/notes").json()
    assert notes["chains"][0]["message"].startswith("3 passed over")


def test_what_breaks_is_reported_before_the_job_is_over(broken_raw: Path, tmp_path: Path) -> None:
    reported: list[str] = []
    before_the_end: list[str] = []

    def move(*_: object) -> None:
        before_the_end.extend(reported)

    host = JobHost(found=lambda entries: reported.extend(e["chain_id"] for e in entries), move=move)
    options = {"executor": "local", "workers": 1, "max_broken": 0.9}
    report = run_job(str(broken_raw), str(tmp_path / "out"), host=host, **options)
    assert set(before_the_end) >= {chain["chain_id"] for chain in report.broken}


def test_old_jobs_are_forgotten_and_young_ones_are_not(idle, start_any: Start) -> None:
    database = start_any.database()
    queue = JobQueue(database, 9)
    old, young = submit(idle, Path("/a")), submit(idle, Path("/b"))
    for _ in range(2):
        job = queue.claim(1)
        assert job is not None
        queue.end(job, "failed", error="x")
    with database.write() as session:
        row = session.get(JobRow, old)
        assert row is not None
        row.updated_at -= 100
        before = row.updated_at + 50
    assert queue.prune(before) == [old]
    assert idle.get(f"/v1/jobs/{old}").status_code == 404
    assert idle.get(f"/v1/jobs/{young}/attempts").json()["attempts"][0]["error"] == "x"


def test_old_lines_of_the_audit_are_forgotten_and_that_is_in_it(idle, start_any: Start) -> None:
    database = start_any.database()
    submit(idle, Path("/a"))
    with database.write() as session:
        lines = list(session.scalars(select(AuditRow).order_by(AuditRow.id)))
        assert len(lines) >= 2
        lines[0].at -= 1000
        before = lines[0].at + 500
        kept = [line.action for line in lines[1:]]
    JobQueue(database, 9).prune_audit(before)
    with database.read() as session:
        left = list(session.scalars(select(AuditRow).order_by(AuditRow.id)))
    assert [line.action for line in left] == [*kept, "audit.prune"] and left[-1].subject == "1"


def test_two_services_never_run_two_jobs_of_one_dataset(idle, start_any: Start) -> None:
    import threading

    database = start_any.database()
    for n in range(6):
        submit(idle, Path(f"/{n}"))
    seen: list[int] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            queue = JobQueue(database, 9)
            for _ in range(4):
                if job := queue.claim(2):
                    seen.append(len(idle.get("/v1/jobs?state=running").json()["jobs"]))
                    queue.end(job, "succeeded")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and seen and set(seen) <= {0, 1}


BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"workers": 4096}, "beyond_limit"),
    ({"memory": 1 << 42}, "beyond_limit"),
    ({"deadline": 86_400}, "beyond_limit"),
    ({"config": {"caps": {"max_rows": 10**9}}}, "beyond_limit"),
    ({"config": {"caps": {"max_rows": "1000000000"}}}, "bad_request"),
    ({"config": {"caps": {"max_ratio": -1}}}, "bad_request"),
    ({"config": {"caps": {"bogus": 3}}}, "bad_request"),
    ({"config": {"max_templates": 10**22}}, "bad_request"),
    ({"config": {"max_template_date": "2021-99-99"}}, "bad_request"),
]


def test_a_job_asks_for_no_more_than_the_operator_allows(start: Start, tmp_path: Path) -> None:
    client = start(datasets={"out": str(tmp_path / "out")}, job_workers=cores())
    body = {"dataset": "out", "input_uri": "/raw", "executor": "local"}
    for change, code in BEYOND:
        refused = client.post("/v1/jobs", json=body | change)
        assert (refused.status_code, refused.json()["code"]) == (422, code), (change, refused.text)


def test_an_operator_may_allow_more(start: Start) -> None:
    assert checked_config("safe", {"caps": {"max_rows": 9_000_000}}, {"max_rows": 9_000_000})
    with pytest.raises(Problem, match="allows"):
        checked_config("safe", {"caps": {"max_rows": 9_000_001}}, {"max_rows": 9_000_000})


def test_what_a_job_says_names_no_flag() -> None:
    """Who sent it over HTTP has no command line; what `evofeed featurize` shows is elsewhere."""
    shown = {"show.py", "commands.py"}
    for path in sorted(Path(run.__file__).parent.glob("*.py")):
        constants = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        texts = [text for text in constants if re.search(r"(^|\s)--[a-z]|same command", text)]
        hints = [text for text in texts if path.name in shown or "`ray start" in text]
        assert texts == hints or path.name == "ray_executor.py", (path.name, texts)

"""Progress of a job as a stream of events: numbered, dated, and only for whoever may see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.service.conftest import Start, open_client, until_trusted

from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.jobs.queue import CANCELLED, JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.routes import jobs


def test_events_are_numbered_and_dated_and_end_with_the_job_or_the_token(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    monkeypatch.setattr(jobs, "_LOOK_SECONDS", 0.02)
    client = start(auth="on", datasets={"out": str(tmp_path / "out")}, input_roots=(str(tmp_path),))
    database = start.database()
    token_id, text = create_token(database, label="x", scopes=["read", "jobs", "publish"])
    queue = JobQueue(database, 100)
    new = {"dataset": "out", "input_uri": str(tmp_path)}
    with open_client(str(client.base_url), text) as own:
        job = own.post("/v1/jobs", json=new).json()["id"]
        with own.stream("GET", f"/v1/jobs/{job}/events") as stream:
            lines = stream.iter_lines()
            first = [next(lines) for _ in range(3)]
            assert queue.claim(1) == job
            queue.end(job, CANCELLED)
            rest = list(lines)
        assert first[:2] == ["id: 1", "event: progress"]
        seen = json.loads(first[2].removeprefix("data: "))
        assert seen["state"] == "queued" and seen["updated_at"].startswith("20")
        numbers = [int(line[4:]) for line in rest if line.startswith("id: ")]
        assert numbers == list(range(2, 2 + len(numbers)))
        assert rest[-3:-1] == ["event: end", 'data: {"state": "cancelled"}']
        other = own.post("/v1/jobs", json=new).json()["id"]
        with own.stream("GET", f"/v1/jobs/{other}/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "id: 1"
            revoke_token(database, token_id)
            until_trusted()
            assert "event: end" not in list(lines), "cut off: nothing says how the job is"
        assert own.get(f"/v1/jobs/{other}").status_code == 401

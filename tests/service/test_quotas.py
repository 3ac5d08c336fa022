"""A token may be given so many jobs at once and so many chains a day, and no more."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from conftest_service import Start, open_client
from sqlalchemy import update

from evofeed.service import jobs
from evofeed.service.auth import create_token
from evofeed.service.jobs import JobQueue
from evofeed.service.quotas import Quotas
from evofeed.service.scheduler import Scheduler
from evofeed.service.tables import JobRow


@pytest.fixture
def idle(start_any: Start, tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple[httpx.Client, Any]:
    """A service whose jobs stay queued, and its database."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    (tmp_path / "raw").mkdir()
    folders = {"datasets": {"out": str(tmp_path / "out")}, "input_roots": (str(tmp_path),)}
    return start_any(auth="on", **folders), start_any.database()


def submit(client: httpx.Client, tmp_path: Any) -> httpx.Response:
    return client.post("/v1/jobs", json={"dataset": "out", "input_uri": str(tmp_path / "raw")})


def test_a_token_has_no_more_jobs_than_it_may(idle, tmp_path) -> None:
    client, database = idle
    tokens = {
        name: create_token(
            database, label=name, scopes=["jobs", "read"], quotas=Quotas(max_jobs=limit)
        )[1]
        for name, limit in (("small", 2), ("none", 0), ("free", None))
    }
    base = str(client.base_url)
    with open_client(base, tokens["small"]) as small:
        first = submit(small, tmp_path).json()["id"]
        assert submit(small, tmp_path).status_code == 202
        refused = submit(small, tmp_path)
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_used_up")
        assert int(refused.headers["Retry-After"]) > 0
        me = small.get("/v1/me").json()
        assert (me["jobs"], me["max_jobs"], me["max_chains"]) == (2, 2, None)
        assert small.post(f"/v1/jobs/{first}/cancel").status_code == 202
        assert submit(small, tmp_path).status_code == 202
        again = small.post(f"/v1/jobs/{first}/retry")
        assert again.status_code == 429, "a job that is tried again is a job too"
    with open_client(base, tokens["none"]) as none:
        assert submit(none, tmp_path).status_code == 429
    with open_client(base, tokens["free"]) as free:
        assert [submit(free, tmp_path).status_code for _ in range(4)] == [202] * 4


def test_chains_of_a_day_are_counted_and_counted_off(idle, tmp_path) -> None:
    client, database = idle
    quotas = Quotas(max_chains=100)
    made = create_token(database, label="a", scopes=["jobs", "read"], quotas=quotas)
    queue = JobQueue(database, 100)
    with open_client(str(client.base_url), made[1]) as own:
        for count, refused in ((60, False), (40, True)):
            job = submit(own, tmp_path).json()["id"]
            assert queue.claim(100) == job
            queue.heartbeat(job, {"num_chains": count})
            assert (submit(own, tmp_path).status_code == 429) == refused
            for waiting, _ in queue.list(state=jobs.QUEUED):
                queue.cancel(waiting.id, "me")
            queue.end(job, jobs.SUCCEEDED, result={"num_chains": count})
        assert own.get("/v1/me").json()["chains"] == 100
        assert "h, or ask" in submit(own, tmp_path).json()["next"]
        with database.write() as session:  # a day goes by
            session.execute(update(JobRow).values(updated_at=JobRow.updated_at - 86_401))
        assert submit(own, tmp_path).status_code == 202


def test_a_token_with_quotas_makes_none_without(idle) -> None:
    client, database = idle
    quotas = Quotas(max_jobs=2, max_chains=100)
    scopes = ["admin", "read", "jobs"]
    made = create_token(database, label="a", scopes=scopes, quotas=quotas)
    body: dict[str, Any] = {"label": "b", "scopes": ["jobs"]}
    with open_client(str(client.base_url), made[1]) as admin:
        for wider in ({}, {"max_jobs": 2}, {"max_jobs": 3, "max_chains": 1}):
            assert admin.post("/v1/tokens", json=body | wider).status_code == 403
        within = {"max_jobs": 2, "max_chains": 99}
        assert admin.post("/v1/tokens", json=body | within).status_code == 201
        shown = [t for t in admin.get("/v1/tokens").json()["tokens"] if t["label"] == "b"]
        assert (shown[0]["max_jobs"], shown[0]["max_chains"]) == (2, 99)

"""A token may be given so many jobs at once and so many chains a day, and no more."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import update
from tests.service.conftest import Start, open_client, until_noticed

from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.access.quotas import Quotas
from evofeed.service.database.tables import JobAttempt
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.problems import Problem


@pytest.fixture
def idle(start_any: Start, tmp_path, monkeypatch: pytest.MonkeyPatch) -> tuple[httpx.Client, Any]:
    """A service whose jobs stay queued, and its database."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    (tmp_path / "raw").mkdir()
    folders = {"datasets": {"out": str(tmp_path / "out")}, "input_roots": (str(tmp_path),)}
    return start_any(auth="on", **folders), start_any.database()


def submit(client: httpx.Client, tmp_path: Any) -> httpx.Response:
    new = {"dataset": "out", "input_uri": str(tmp_path / "raw"), "ref": None}
    return client.post("/v1/jobs", json=new)


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
            for waiting, _ in queue.newest(state=jobs.QUEUED):
                queue.cancel(waiting.id, "me")
            queue.end(job, jobs.SUCCEEDED, result={"num_chains": count})
        assert own.get("/v1/me").json()["chains"] == 100
        assert "h, or ask" in submit(own, tmp_path).json()["next"]
        with database.write() as session:  # a day goes by
            session.execute(update(JobAttempt).values(ended_at=JobAttempt.ended_at - 86_401))
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


def test_retries_are_charged_to_whoever_asks_and_count_again(idle, tmp_path) -> None:
    client, database = idle
    queue = JobQueue(database, 2)
    scopes = ["jobs", "read"]
    others, mine = (
        create_token(database, label=n, scopes=scopes, quotas=q)[1]
        for n, q in (("a", Quotas()), ("b", Quotas(max_jobs=1, max_chains=30)))
    )
    base = str(client.base_url)
    with open_client(base, others) as other, open_client(base, mine) as own:
        ids = [submit(other, tmp_path).json()["id"] for _ in range(3)]
        for _ in ids:
            job = queue.claim(100)
            assert job is not None
            queue.heartbeat(job, {"num_chains": 24})
            queue.end(job, jobs.SUCCEEDED, result={"num_chains": 24})
        assert own.post(f"/v1/jobs/{ids[0]}/retry").status_code == 202
        assert own.get("/v1/me").json()["jobs"] == 1
        assert own.post(f"/v1/jobs/{ids[1]}/retry").status_code == 429
        assert queue.claim(100) == ids[0]
        queue.heartbeat(ids[0], {"num_chains": 24})
        queue.end(ids[0], jobs.CANCELLED)
        assert own.get("/v1/me").json()["chains"] == 24, "a job that was cancelled did work"
        assert own.post(f"/v1/jobs/{ids[1]}/retry").status_code == 202
        own.post(f"/v1/jobs/{ids[1]}/cancel")
        assert own.get("/v1/me").json()["chains"] == 24
        for job_id in ids[:2]:
            assert other.post(f"/v1/jobs/{job_id}/retry").status_code == 202
        with pytest.raises(Problem, match="wait already"):
            queue.requeue(ids[2], "local")


def test_tokens_made_with_a_token_share_its_quotas_end_with_it_and_outlive_it_never(idle) -> None:
    client, database = idle
    scopes = ["admin", "read", "jobs"]
    parent, text = create_token(
        database, label="a", scopes=scopes, seconds=3600, quotas=Quotas(max_jobs=1, max_chains=9)
    )
    base = str(client.base_url)
    body = {"label": "b", "scopes": ["jobs", "read"], "max_jobs": 1, "max_chains": 9}
    with open_client(base, text) as admin:
        children = [admin.post("/v1/tokens", json=body).json() for _ in range(2)]
        listed = {t["id"]: t for t in admin.get("/v1/tokens").json()["tokens"]}
        assert listed[children[0]["id"]]["expires_at"] == listed[parent]["expires_at"]
        longer = admin.post("/v1/tokens", json=body | {"seconds": 1e6}).json()
        listed = {t["id"]: t for t in admin.get("/v1/tokens").json()["tokens"]}
        assert listed[longer["id"]]["expires_at"] == listed[parent]["expires_at"]
        job = {"dataset": "out", "input_uri": "/nowhere", "ref": None}
        job["input_uri"] = admin.get("/v1/datasets/out").json()["uri"].replace("out", "raw")
        with open_client(base, children[0]["token"]) as one:
            assert one.post("/v1/jobs", json=job).status_code == 202
        with open_client(base, children[1]["token"]) as two:
            assert two.post("/v1/jobs", json=job).status_code == 429
            assert admin.get("/v1/me").json()["jobs"] == 1
            revoke_token(database, parent)
            until_noticed()
            assert two.get("/v1/me").status_code == 401

"""A ref moves only as its policy allows, whether a request moves it or a job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish, work_off

from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.refs import Refs
from evofeed.store import Dataset
from evofeed.synth import write_synthetic

REF = "/v1/datasets/demo/refs/main"


@pytest.fixture
def world(
    start: Start, folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Path]:
    """Clients by their scopes, for a service with a published dataset and raw input."""
    monkeypatch.setattr(Scheduler, "start", lambda self: None)
    shutil.copytree(folder[0], tmp_path / "copy")
    write_synthetic(tmp_path / "raw", 2, seed=0)
    client = start(
        auth="on", datasets={"demo": str(tmp_path / "copy")}, input_roots=(str(tmp_path),)
    )
    database = start.database()

    def as_(*scopes: str) -> Any:
        made = create_token(database, label="x", scopes=list(scopes))
        return open_client(str(client.base_url), made[1])

    def end(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
        """The job of an answer, once it has ended."""
        assert answer.status_code == 202, answer.text
        work_off(start, monkeypatch)
        ended: dict[str, Any] = client.get(f"/v1/jobs/{answer.json()['id']}").json()
        return ended

    as_.database, as_.end = database, end  # type: ignore[attr-defined]
    return as_, tmp_path


def job(client: httpx.Client, tmp_path: Path, **changes: Any) -> httpx.Response:
    body = {
        "dataset": "demo",
        "input_uri": str(tmp_path / "raw"),
        "executor": "local",
        "replace": True,
    }
    return client.post("/v1/jobs", json=body | {"workers": 1} | changes)


def put(client: httpx.Client, digest: str) -> httpx.Response:
    now = client.get(REF).headers["ETag"]
    return client.put(REF, json={"digest": digest}, headers={"If-Match": now})


def test_a_token_without_publish_moves_no_ref_by_a_job(world) -> None:
    as_, tmp_path = world
    before = Dataset.open(tmp_path / "copy").digest
    with as_("jobs", "read") as jobs:
        refused = job(jobs, tmp_path)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        done = as_.end(jobs, job(jobs, tmp_path, ref=None))
        assert done["state"] == "succeeded", done
        digest = done["result"]["snapshot"]
        manifest = jobs.get(f"/v1/datasets/demo/snapshots/{digest}").json()
        assert manifest["num_chains"] == 2
    assert Dataset.open(tmp_path / "copy").digest == before


def test_a_policy_holds_for_requests_and_for_jobs(world, folder) -> None:
    as_, tmp_path = world
    late = {"column": "num_res", "op": ">", "value": 0}
    with as_("admin", "read") as admin, as_("publish", "read", "jobs") as publisher:
        assert publisher.put(f"{REF}/policy", json={"protected": True}).status_code == 403
        assert admin.put(f"{REF}/policy", json={"forbid": [late]}).status_code == 200
        assert admin.get(f"{REF}/policy").json()["forbid"] == [late]
        refused = put(publisher, folder[1]).json()
        assert refused["code"] == "forbidden_chains" and "0002_A" in refused["detail"]
        done = as_.end(publisher, job(publisher, tmp_path))
        assert done["state"] == "failed" and "forbid[0]" in done["error"]
        assert len(done["result"]["snapshot"]) == 64, "what was made can still be looked at"
        admin.put(f"{REF}/policy", json={"protected": True})
        assert put(publisher, folder[1]).json()["code"] == "ref_protected"
        assert job(publisher, tmp_path).json()["code"] == "ref_protected"
        assert publisher.post(f"/v1/jobs/{done['id']}/retry").json()["code"] == "ref_protected"
        admin.put(f"{REF}/policy", json={"reviewer": "admin"})
        assert put(publisher, folder[1]).status_code == 403
        assert job(publisher, tmp_path).status_code == 403
        assert Dataset.open(tmp_path / "copy").digest == folder[2]
        with as_("admin", "publish", "read") as reviewer:
            assert put(reviewer, done["result"]["snapshot"]).status_code == 200
        bad = {"forbid": [{"column": "x", "op": "known"}]}
        assert admin.put(f"{REF}/policy", json=bad).status_code == 422


def test_a_job_says_who_moved_the_ref_and_why_and_not_after_its_token_has_ended(world) -> None:
    as_, tmp_path = world
    token_id, text = create_token(
        as_.database, label="p", scopes=["publish", "jobs", "read"], datasets=["demo"]
    )
    with as_("read") as reader, open_client(str(reader.base_url), text) as publisher:
        done = as_.end(publisher, job(publisher, tmp_path, message="more chains"))
        made = done["id"]
        assert done["state"] == "succeeded", done
        last = reader.get(f"{REF}/history").json()["moves"][0]
        assert last["digest"] == done["result"]["snapshot"]
        assert (last["principal"], last["job"], last["message"]) == (token_id, made, "more chains")
        held = job(publisher, tmp_path, crop={"max_msa_rows": 3})
        revoke_token(as_.database, token_id)
        refused = as_.end(reader, held)
        assert refused["state"] == "failed" and "revoked" in refused["error"]
        assert reader.get(REF).json()["digest"] == done["result"]["snapshot"]
    with as_("admin", "read") as admin:
        lines = admin.get("/v1/audit").json()["lines"]
        actions = {(line["action"], line["principal"]) for line in lines}
        assert {("ref.move", token_id), ("job.end", token_id)} <= actions


def test_a_job_that_came_too_late_says_what_to_do_and_where_its_work_is(
    world, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another service on the same folder, with a database of its own, was faster."""
    as_, tmp_path = world
    moved = Refs.move

    def late(refs: Refs, dataset: str, ref: str, digest: str, expect: str, *more: Any, **why: Any):
        monkeypatch.setattr(Refs, "move", moved)
        publish(tmp_path / "copy", range(60), expect=expect)
        return moved(refs, dataset, ref, digest, expect, *more, **why)

    with as_("publish", "jobs", "read") as client:
        monkeypatch.setattr(Refs, "move", late)
        failed = as_.end(client, job(client, tmp_path))
        assert failed["state"] == "failed" and "run it again" in failed["error"], failed
        assert "open the dataset" not in failed["error"], "words for who writes Python"
        made = client.get(f"/v1/datasets/demo/snapshots/{failed['result']['snapshot']}")
        assert made.status_code == 200
        again = as_.end(client, client.post(f"/v1/jobs/{failed['id']}/retry"))
        assert again["state"] == "succeeded", again
        assert client.get(REF).json()["digest"] == again["result"]["snapshot"]


def test_an_old_input_submitted_again_is_published_at_once(world) -> None:
    as_, tmp_path = world
    with as_("publish", "jobs", "read") as client:
        first = as_.end(client, job(client, tmp_path))
        old = client.get("/v1/datasets/demo/snapshots").json()["snapshots"]
        publish(tmp_path / "copy", range(60), expect=first["result"]["snapshot"])
        again = as_.end(client, job(client, tmp_path))
        assert again["state"] == "succeeded", again
        assert client.get(REF).json()["digest"] == again["result"]["snapshot"]
        new = {
            s["digest"]: s for s in client.get("/v1/datasets/demo/snapshots").json()["snapshots"]
        }
        assert all(new[s["digest"]] == s for s in old), "what was there is not written again"

"""A ref moves only as its policy allows, whether a request moves it or a job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, id_of, publish

from evofeed.service.access.auth import revoke_token
from evofeed.service.refs import Refs
from evofeed.store import Dataset
from evofeed.synth import write_synthetic

REF = "/v1/datasets/demo/refs/main"


class World:
    """A service with a published dataset and raw input, whose jobs end when they are asked to."""

    def __init__(self, start: Start, tmp_path: Path) -> None:
        self.copy, self._raw, self.start = tmp_path / "copy", str(tmp_path / "raw"), start
        write_synthetic(tmp_path / "raw", 2, seed=0)
        start(auth="on", datasets={"demo": str(self.copy)}, input_roots=(str(tmp_path),))
        self.as_ = start.as_

    @property
    def digest(self) -> str:
        """What `main` names in the folder itself."""
        return Dataset.open(self.copy).digest

    def submit(self, client: httpx.Client, **changes: Any) -> httpx.Response:
        body = {"dataset": "demo", "input_uri": self._raw, "executor": "local", "replace": True}
        return client.post("/v1/jobs", json=body | {"workers": 1} | changes)

    def end(self, client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
        """The job of an answer, once it has ended."""
        assert answer.status_code == 202, answer.text
        self.start.work_off()
        ended: dict[str, Any] = client.get(f"/v1/jobs/{answer.json()['id']}").json()
        return ended

    def done(self, client: httpx.Client, **changes: Any) -> dict[str, Any]:
        return self.end(client, self.submit(client, **changes))


@pytest.fixture
def world(start: Start, folder, tmp_path: Path, jobs_wait: None) -> World:
    shutil.copytree(folder[0], tmp_path / "copy")
    return World(start, tmp_path)


def put(client: httpx.Client, digest: str) -> httpx.Response:
    now = client.get(REF).headers["ETag"]
    return client.put(REF, json={"digest": digest}, headers={"If-Match": now})


def test_a_token_without_publish_moves_no_ref_by_a_job(world: World) -> None:
    before, jobs = world.digest, world.as_("jobs", "read")
    refused = world.submit(jobs)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    done = world.done(jobs, ref=None)
    assert done["state"] == "succeeded", done
    manifest = jobs.get(f"/v1/datasets/demo/snapshots/{done['result']['snapshot']}").json()
    assert manifest["num_chains"] == 2 and world.digest == before


def test_a_policy_holds_for_requests_and_for_jobs(world: World, folder) -> None:
    admin, publisher = world.as_("admin", "read"), world.as_("publish", "read", "jobs")
    late = {"column": "num_res", "op": ">", "value": 0}
    assert admin.put(f"{REF}/policy", json={"forbid": [late]}).status_code == 200
    assert admin.get(f"{REF}/policy").json()["forbid"] == [late]
    refused = put(publisher, folder[1]).json()
    assert refused["code"] == "forbidden_chains" and "0002_A" in refused["detail"]
    done = world.done(publisher)
    assert done["state"] == "failed" and "forbid[0]" in done["error"]
    assert len(done["result"]["snapshot"]) == 64, "what was made can still be looked at"
    admin.put(f"{REF}/policy", json={"protected": True})
    again = publisher.post(f"/v1/jobs/{done['id']}/retry")
    for held in (put(publisher, folder[1]), world.submit(publisher), again):
        assert held.json()["code"] == "ref_protected"
    admin.put(f"{REF}/policy", json={"reviewer": "admin"})
    for held in (put(publisher, folder[1]), world.submit(publisher)):
        assert held.status_code == 403
    assert world.digest == folder[2]
    reviewer = world.as_("admin", "publish", "read")
    assert put(reviewer, done["result"]["snapshot"]).status_code == 200
    bad = {"forbid": [{"column": "x", "op": "known"}]}
    assert admin.put(f"{REF}/policy", json=bad).status_code == 422


def test_a_job_says_who_moved_the_ref_and_why_and_not_after_its_token_has_ended(
    world: World, start: Start
) -> None:
    text = start.token("publish", "jobs", "read", datasets=["demo"])
    reader, publisher, token_id = world.as_("admin", "read"), start.client(text), id_of(text)
    done = world.done(publisher, message="more chains")
    assert done["state"] == "succeeded", done
    last = reader.get(f"{REF}/history").json()["moves"][0]
    assert last["digest"] == done["result"]["snapshot"]
    why = last["principal"], last["job"], last["message"]
    assert why == (token_id, done["id"], "more chains")
    held = world.submit(publisher, crop={"max_msa_rows": 3})
    revoke_token(start.database, token_id)
    refused = world.end(reader, held)
    assert refused["state"] == "failed" and "revoked" in refused["error"]
    assert reader.get(REF).json()["digest"] == done["result"]["snapshot"]
    lines = reader.get("/v1/audit").json()["lines"]
    actions = {(line["action"], line["principal"]) for line in lines}
    assert {("ref.move", token_id), ("job.end", token_id)} <= actions


def test_a_job_that_came_too_late_says_what_to_do_and_where_its_work_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another service on the same folder, with a database of its own, was faster."""
    moved, client = Refs.move, world.as_("publish", "jobs", "read")

    def late(refs: Refs, dataset: str, ref: str, digest: str, expect: str, *more: Any, **why: Any):
        monkeypatch.setattr(Refs, "move", moved)
        publish(world.copy, range(60), expect=expect)
        return moved(refs, dataset, ref, digest, expect, *more, **why)

    monkeypatch.setattr(Refs, "move", late)
    failed = world.done(client)
    assert failed["state"] == "failed" and "run it again" in failed["error"], failed
    assert "open the dataset" not in failed["error"], "words for who writes Python"
    made = client.get(f"/v1/datasets/demo/snapshots/{failed['result']['snapshot']}")
    assert made.status_code == 200
    again = world.end(client, client.post(f"/v1/jobs/{failed['id']}/retry"))
    assert again["state"] == "succeeded", again
    assert client.get(REF).json()["digest"] == again["result"]["snapshot"]


def test_an_old_input_submitted_again_is_published_at_once(world: World) -> None:
    client = world.as_("publish", "jobs", "read")

    def snapshots() -> dict[str, Any]:
        listed = client.get("/v1/datasets/demo/snapshots").json()["snapshots"]
        return {one["digest"]: one for one in listed}

    first, old = world.done(client), snapshots()
    publish(world.copy, range(60), expect=first["result"]["snapshot"])
    again = world.done(client)
    assert again["state"] == "succeeded", again
    assert client.get(REF).json()["digest"] == again["result"]["snapshot"]
    assert old.items() <= snapshots().items(), "what was there is not written again"

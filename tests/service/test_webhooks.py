"""Ends of jobs are reported: signed, again until they arrive."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish
from tests.service.receiver import Receiver

from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.database.database import Database
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.timings import Timings
from evofeed.service.webhooks import notifier as webhooks

PROMPT = Timings(
    webhook_tick=0.02, webhook_waits=(0.05, 0.05), webhook_lease=1e6, webhook_answer=300.0
)


class Rounds:
    """Counts how often a service has looked for ends to tell."""

    count = 0

    def pass_by(self) -> None:
        """Wait until it has looked with everything there that is there now."""
        enough = self.count + 2  # it may be in the middle of one
        wait_for(lambda: self.count >= enough)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Counts a service's looks."""
    rounds, due = Rounds(), webhooks.Notifier._due

    def counted(self: webhooks.Notifier) -> set[str]:
        found = due(self)
        rounds.count += 1
        return found

    monkeypatch.setattr(webhooks.Notifier, "_due", counted)
    return rounds


@pytest.fixture
def hooked(
    start_any: Start, receiver: Receiver, quick: Rounds, tmp_path
) -> tuple[httpx.Client, Any]:
    """A service that runs no jobs itself and may talk to the receiver; its database."""
    client = start_any(
        timings=PROMPT,
        datasets={"out": str(tmp_path / "out"), "other": str(tmp_path / "other")},
        webhook_hosts=(receiver.origin,),
        max_jobs=0,
    )
    return client, start_any.database()


def end_job(database: Database, state: str = jobs.SUCCEEDED, dataset: str = "out") -> str:
    queue = JobQueue(database, 100)
    job = queue.submit(Catalog(database).dataset(dataset), {"ref": "main"}, "me")
    assert queue.claim(100) == job.id
    queue.end(job.id, state, result={"snapshot": "ab" * 32, "num_good": 6, "num_broken": 1})
    return str(job.id)


def wait_for(claim: Any) -> None:
    end = time.monotonic() + 240
    while not claim():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_an_end_is_reported_once_it_arrives_and_its_signature_holds(hooked, receiver) -> None:
    client, database = hooked
    began = time.time()
    end_job(database)  # before anybody asked: no news
    made = client.post("/v1/webhooks", json={"url": f"{receiver.origin}/hook?a=1"}).json()
    receiver.answers = [500, 302]  # neither has arrived; the redirect is not followed
    job = end_job(database)
    wait_for(lambda: len(receiver.got) == 3)
    wait_for(lambda: deliveries(client, made)[0]["next_attempt_at"] is None)
    (reported,) = deliveries(client, made)
    assert (reported["attempts"], reported["outcome"], reported["job"]) == (3, "answered 204", job)
    ids = {headers["webhook-id"] for headers, _ in receiver.got}
    assert ids == {reported["id"]}, "a receiver can tell a repetition by its id"
    key = base64.b64decode(made["secret"].removeprefix("whsec_"))
    for headers, body in receiver.got:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        right = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{right}"
        assert int(began) <= int(headers["webhook-timestamp"]) <= time.time()
    message = json.loads(receiver.got[-1][1])
    assert message["type"] == "job.succeeded"
    assert message["data"] | {"error": ""} == {
        "job": job,
        "dataset": "out",
        "ref": "main",
        "snapshot": "ab" * 32,
        "num_good": 6,
        "num_broken": 1,
        "error": "",
    }


def deliveries(client: httpx.Client, made: dict[str, Any]) -> list[dict[str, Any]]:
    answer = client.get(f"/v1/webhooks/{made['id']}/deliveries")
    return list(answer.json()["deliveries"])


def test_only_the_datasets_asked_for_are_notified_and_nothing_after_removal(
    hooked, receiver, quick
) -> None:
    client, database = hooked
    url = f"{receiver.origin}/"
    made = client.post("/v1/webhooks", json={"url": url, "datasets": ["out"]}).json()
    assert "secret" not in client.get("/v1/webhooks").json()["webhooks"][0]
    end_job(database, dataset="other")
    end_job(database, jobs.FAILED)
    wait_for(lambda: receiver.got)
    assert client.delete(f"/v1/webhooks/{made['id']}").status_code == 204
    end_job(database)
    quick.pass_by()
    assert [json.loads(body)["type"] for _, body in receiver.got] == ["job.failed"]
    assert client.get(f"/v1/webhooks/{made['id']}/deliveries").status_code == 404


def got(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(body) for _, body in receiver.got]


def test_moved_refs_are_told_with_who_and_why(hooked, receiver, tmp_path) -> None:
    client, _ = hooked
    first = publish(tmp_path / "out", range(3))
    put = {"digest": first, "message": "a tag"}
    client.put("/v1/datasets/out/refs/v0", json=put, headers={"If-None-Match": "*"})  # no news
    hook = {"url": f"{receiver.origin}/", "events": ["ref.moved"], "datasets": ["out"]}
    made = client.post("/v1/webhooks", json=hook).json()
    assert made["events"] == ["ref.moved"]
    client.put("/v1/datasets/out/refs/v1", json=put, headers={"If-None-Match": "*"})
    client.delete("/v1/datasets/out/refs/v1", headers={"If-Match": f'"{first}"'})
    wait_for(lambda: len(receiver.got) == 2)
    moves = {message["data"]["digest"]: message["data"] for message in got(receiver)}
    assert moves[first] | {"principal": ""} == {
        "dataset": "out", "ref": "v1", "digest": first, "previous": None, "principal": "",
        "job": None, "message": "a tag",
    }  # fmt: skip
    assert moves[None]["previous"] == first, "its end too"
    assert all(one["type"] == "ref.moved" and one["job"] == "" for one in deliveries(client, made))


def test_chains_that_break_are_told_while_their_job_runs_and_once(hooked, receiver, quick) -> None:
    client, database = hooked
    hook = {"url": f"{receiver.origin}/", "events": ["chain.quarantined", "job.failed"]}
    client.post("/v1/webhooks", json=hook)
    queue = JobQueue(database, 100)
    job = queue.submit(Catalog(database).dataset("out"), {"ref": "main"}, "me")
    assert queue.claim(100) == job.id
    broken = [
        {"kind": "broken", "chain_id": f"{i}abc_A", "type": "MsaError", "message": f"row {i}"}
        for i in range(103)
    ]
    note = {"kind": "note", "chain_id": "9abc_A", "message": "late"}
    queue.heartbeat(job.id, {"num_chains": 200}, [*broken[:2], note])
    wait_for(lambda: len(receiver.got) == 1)
    (message,) = got(receiver)
    assert message["type"] == "chain.quarantined" and message["data"]["job"] == job.id
    assert [c["chain_id"] for c in message["data"]["chains"]] == ["0abc_A", "1abc_A"]
    queue.end(job.id, jobs.SUCCEEDED, chains=[*broken, note])  # written again, the first too
    wait_for(lambda: len(receiver.got) == 3)
    quick.pass_by()
    sent = [c["chain_id"] for m in got(receiver) for c in m["data"]["chains"]]
    assert sorted(sent) == sorted(c["chain_id"] for c in broken), "each once, in pieces"
    assert len(receiver.got) == 3, "and no end of a job, which was not asked for"


def test_a_ping_arrives_and_a_message_is_sent_again_under_its_id(hooked, receiver) -> None:
    client, database = hooked
    made = client.post("/v1/webhooks", json={"url": f"{receiver.origin}/"}).json()
    path = f"/v1/webhooks/{made['id']}"
    sent = client.post(f"{path}/ping")
    assert sent.status_code == 202 and sent.json()["type"] == "ping"
    wait_for(lambda: len(receiver.got) == 1)
    assert got(receiver)[0]["data"] == {"webhook": made["id"]}
    receiver.answers = [500, 500, 500]
    end_job(database)
    wait_for(lambda: [d["next_attempt_at"] for d in deliveries(client, made)] == [None, None])
    lost = next(d for d in deliveries(client, made) if d["type"] == "job.succeeded")
    again = client.post(f"{path}/deliveries/{lost['id']}/redeliver")
    assert again.status_code == 202 and again.json()["id"] == lost["id"]
    wait_for(lambda: len(receiver.got) == 5)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 2
    assert client.post(f"{path}/deliveries/msg_{'0' * 24}/redeliver").status_code == 404
    assert client.post(f"/v1/webhooks/{'0' * 16}/ping").status_code == 404


def test_moves_are_told_to_those_only_who_may_read_them(start, receiver, folder) -> None:
    client = start(
        auth="on", datasets={"demo": str(folder[0])}, webhook_hosts=(receiver.origin,), max_jobs=0
    )
    text = create_token(start.database(), label="x", scopes=["jobs"])[1]
    with open_client(str(client.base_url), text) as own:
        hook = {"url": f"{receiver.origin}/", "events": ["ref.moved"]}
        assert own.post("/v1/webhooks", json=hook).status_code == 403
        assert own.post("/v1/webhooks", json=hook | {"events": ["job.failed"]}).status_code == 201


def test_who_is_gone_or_never_answers_is_given_up(hooked, receiver) -> None:
    client, database = hooked
    made = client.post("/v1/webhooks", json={"url": f"{receiver.origin}/"}).json()
    receiver.answers = [503] * 3
    end_job(database)
    wait_for(lambda: [d["next_attempt_at"] for d in deliveries(client, made)] == [None])
    assert deliveries(client, made)[0]["outcome"] == "answered 503"
    receiver.answers = [410]
    end_job(database)
    wait_for(lambda: client.get("/v1/webhooks").json()["webhooks"][0]["disabled"])
    assert len(receiver.got) == 4


def test_who_answers_slowly_delays_nobody_else(hooked, receiver) -> None:
    client, database = hooked
    slow = client.post("/v1/webhooks", json={"url": f"{receiver.origin}/slow"}).json()
    quick = client.post("/v1/webhooks", json={"url": f"{receiver.origin}/"}).json()
    for _ in range(3):
        end_job(database)
    wait_for(lambda: [d["outcome"] for d in deliveries(client, quick)] == ["answered 204"] * 3)
    wait_for(lambda: any(d["attempts"] for d in deliveries(client, slow)))
    reported = deliveries(client, slow)
    assert [(d["attempts"], d["outcome"]) for d in reported].count((0, "")) == 2, "one at a time"
    receiver.slow.set()
    wait_for(lambda: [d["outcome"] for d in deliveries(client, slow)] == ["answered 204"] * 3)


def test_a_webhook_falls_silent_with_its_token_and_is_no_others(
    start: Start, receiver: Receiver, quick: Rounds, tmp_path
) -> None:
    folders = {"out": str(tmp_path / "out"), "other": str(tmp_path / "other")}
    options = {"webhook_hosts": (receiver.origin,), "max_jobs": 0}
    client = start(timings=PROMPT, auth="on", datasets=folders, **options)
    database = start.database()
    made = {}
    for name in ("mine", "theirs"):
        datasets = ["out"] if name == "mine" else None
        made[name] = create_token(database, label=name, scopes=["jobs"], datasets=datasets)
    url = {"url": f"{receiver.origin}/"}
    base = str(client.base_url)
    with open_client(base, made["mine"][1]) as mine, open_client(base, made["theirs"][1]) as theirs:
        assert mine.post("/v1/webhooks", json=url | {"datasets": ["other"]}).status_code == 403
        hook = mine.post("/v1/webhooks", json=url).json()
        assert hook["datasets"] == ["out"], "what the token is for, and no more"
        assert theirs.get("/v1/webhooks").json() == {"webhooks": []}
        assert theirs.delete(f"/v1/webhooks/{hook['id']}").status_code == 404
    revoke_token(database, made["mine"][0])
    end_job(database)
    quick.pass_by()
    assert not receiver.got


def test_a_place_that_was_not_opened_is_refused(hooked, start: Start) -> None:
    client, _ = hooked
    for url in ("https://example.org/", "http://127.0.0.1:1/", "file:///etc/passwd"):
        answer = client.post("/v1/webhooks", json={"url": url})
        assert answer.status_code == 403 and "EVOFEED_WEBHOOK_HOSTS" in answer.json()["next"]
    closed = start(max_jobs=0)
    assert closed.post("/v1/webhooks", json={"url": "https://example.org/"}).status_code == 403

"""Ends of jobs are reported: signed, again until they arrive, never to where they must not go."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import datetime
import hashlib
import hmac
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish

from evofeed.errors import ServiceError
from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.database.database import Database
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.timings import Timings
from evofeed.service.webhooks import notifier as webhooks
from evofeed.service.webhooks import outbound

PUBLIC = "93.184.215.14"


class Receiver:
    """A small web server that keeps what it gets and answers as configured."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.slow = threading.Event()  # until set, who posts to /slow waits
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((dict(self.headers), body))
                if self.path == "/slow":
                    outer.slow.wait()
                status = outer.answers.pop(0) if outer.answers else 204
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.slow.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


PROMPT = Timings(
    webhook_tick=0.02, webhook_waits=(0.05, 0.05), webhook_lease=1e6, webhook_answer=300.0
)
"""A service looks and tries again at once, and gives up nobody for being slow."""


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


ALLOWED = ("example.org", "*.hooks.example", "http://10.0.0.5:8080")


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org",
        "https://EXAMPLE.org:443/a?b=c",
        "https://a.hooks.example/",
        "http://10.0.0.5:8080/x",
    ],
)
def test_what_is_on_the_list_may_be_called(url: str) -> None:
    assert outbound.check_url(url, ALLOWED).path.startswith("/")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "https://example.org:8443/",
        "https://example.org@evil.example/",
        "https://user:pass@example.org/",
        "https://example.org.evil.example/",
        "https://evilexample.org/",
        "https://hooks.example/",
        "https://example.org\\@evil.example/",
        "https://example.org/#x",
        "https://example.org/a b",
        "https://example.org/\r\nHost: x",
        "https://[::1/",
        "https://example.org:port/",
        "https://2130706433/",
        "http://10.0.0.5/",
        "http://10.0.0.5:8081/",
        "ftp://example.org/",
        "example.org",
        "",
    ],
)
def test_what_is_not_may_not(url: str) -> None:
    with pytest.raises(ServiceError):
        outbound.check_url(url, ALLOWED)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    ],
)
def test_addresses_of_the_inside_are_not_public(address: str) -> None:
    assert not outbound.is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "2606:2800:21f:cb07:6820:80da:af6b:8b2c"])
def test_addresses_of_the_outside_are(address: str) -> None:
    assert outbound.is_public(address)


def test_a_name_is_resolved_once_and_that_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [[PUBLIC], ["127.0.0.1"]]  # a name that turns into another after the check
    connected: list[Any] = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in answers.pop(0)]

    def connect(address: Any, timeout: float) -> socket.socket:
        connected.append(address)
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "create_connection", connect)
    target = outbound.check_url("https://example.org/", ALLOWED)
    with pytest.raises(ServiceError, match="nobody there"):
        outbound.post(target, b"{}", {})
    assert connected == [(PUBLIC, 443)] and len(answers) == 1
    answers[0] = [PUBLIC, "10.0.0.1"]  # one public address does not excuse another
    with pytest.raises(ServiceError, match=r"10\.0\.0\.1, which is not a public"):
        outbound.post(target, b"{}", {})
    assert len(connected) == 1


def test_an_answer_that_trickles_in_is_cut_off() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{server.getsockname()[1]}"

    def trickle() -> None:
        stream, _ = server.accept()
        with stream, contextlib.suppress(OSError):
            while True:
                stream.sendall(b"x")
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(ServiceError, match=r"no answer within 0\.3 s"):
        outbound.post(outbound.check_url(origin, (origin,)), b"{}", {}, seconds=0.3)
    thread.join()
    server.close()


def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for `localhost` that signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(built.public_bytes(pem))
    kind = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(pem, kind, plain))
    return str(folder / "cert.pem"), str(folder / "key.pem")


def test_https_is_spoken_and_its_certificate_checked(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    receiver.server.socket = server.wrap_socket(receiver.server.socket, server_side=True)
    origin = f"https://localhost:{receiver.server.server_port}"
    target = outbound.check_url(f"{origin}/a", (origin,))
    post = partial(outbound.post, body=b"{}", headers={}, seconds=300.0)
    with pytest.raises(ServiceError, match="certificate verify failed"):
        post(target)
    trusting = ssl.create_default_context(cafile=cert)
    monkeypatch.setattr(ssl, "create_default_context", lambda: trusting)
    assert post(target) == 204
    other = dataclasses.replace(target, host="127.0.0.1")
    with pytest.raises(ServiceError, match=r"not valid for '127\.0\.0\.1'"):
        post(other)
    assert [body for _, body in receiver.got] == [b"{}"]

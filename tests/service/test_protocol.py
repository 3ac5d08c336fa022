"""HTTP as its documents have it, at the corners."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

import pytest
from tests.service.conftest import Start, open_client

from evofeed.service.access.auth import create_token


def test_whatever_answers_get_answers_head(served) -> None:
    for path in ("/healthz", "/", "/v1/datasets", f"{served.base}/refs/main",
                 f"{served.base}/snapshots/{served.second}/stats"):  # fmt: skip
        whole, head = served.client.get(path), served.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        same = ("content-type", "etag", "cache-control")
        assert [head.headers.get(n) for n in same] == [whole.headers.get(n) for n in same]


def test_a_refused_method_lists_all_that_are_allowed(served) -> None:
    for path, methods in (
        (f"{served.base}/refs/main", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/v1/datasets", {"GET", "HEAD", "POST"}),
        (served.base, {"GET", "HEAD", "PATCH", "DELETE"}),
    ):
        answer = served.client.request("OPTIONS", path)
        assert answer.status_code == 405 and set(answer.headers["Allow"].split(", ")) == methods


def test_a_digest_in_a_path_means_an_etag(served) -> None:
    base = f"/snapshots/{served.second}"
    for path in ("", "/index", "/summary", "/stats", "/chains", "/chains/0001_A"):
        answer = served.get(base + path)
        assert "immutable" in answer.headers["cache-control"], path
        known = {"If-None-Match": answer.headers["etag"]}
        assert served.get(base + path, headers=known).status_code == 304


def test_a_last_byte_beyond_the_end_is_the_last_there_is(served) -> None:
    shard = served.get(f"/snapshots/{served.second}").json()["shards"][0]
    for last in ("9" * 20, "9" * 60):
        answer = served.get(f"/shards/{shard['name']}", headers={"Range": f"bytes=0-{last}"})
        assert answer.status_code == 206 and len(answer.content) == shard["nbytes"]


def test_a_method_counts_in_either_case(served) -> None:
    url = f"/snapshots/{served.second}/chains?count=true&method="
    upper, lower = (served.get(url + m).json() for m in ("X-RAY DIFFRACTION", "x-ray diffraction"))
    assert upper["matched"] == lower["matched"] > 0


@pytest.mark.parametrize(
    "query", ["released_from=0", "released_from=1e9", "released_from=2020-13-01", "split=train"]
)
def test_what_is_no_date_and_no_column_is_refused(served, query: str) -> None:
    assert served.get(f"/snapshots/{served.second}/chains?{query}").status_code == 422


@pytest.mark.parametrize(
    "text",
    ['{"label": "x", "scopes": ["read"], "max_chains": true}',
     '{"label": "x", "scopes": ["read"], "seconds": NaN}',
     '{"label": "x", "scopes": ["read"], "seconds": Infinity}',
     '{"label": "x\\u0000", "scopes": ["read"]}',
     '{"label": "x", "scopes": ["read"], "max_jobs": 1.0}'],
)  # fmt: skip
def test_a_body_is_json_of_the_right_kinds(served, text: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = served.client.post("/v1/tokens", content=text, headers=headers)
    assert answer.status_code == 422, answer.text


def test_texts_that_a_database_cannot_keep_are_refused(start_any: Start, tmp_path) -> None:
    client = start_any(datasets={"out": str(tmp_path / "out")})
    headers = {"Content-Type": "application/json"}
    for name, value in (
        ("description", '"a\\u0000b"'),
        ("description", '"a\\ud800"'),
        ("description", '"a\\u0001"'),
    ):
        text = f'{{"name": "x", "uri": "{tmp_path}/x", "{name}": {value}}}'
        answer = client.post("/v1/datasets", content=text, headers=headers)
        assert answer.status_code == 422, answer.text
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = (
            f'{{"dataset": "out", "input_uri": "/raw", '
            f'"config": {{"confidence_threshold": {number}}}}}'
        )
        assert client.post("/v1/jobs", content=text, headers=headers).status_code == 422
    fine = {"name": "x", "uri": f"{tmp_path}/x", "description": "ä\u2028\ttext\n"}
    assert client.post("/v1/datasets", json=fine).status_code == 201


def test_a_repeated_request_has_the_first_ones_location(start_any: Start, tmp_path) -> None:
    client = start_any()
    new = {"name": "x", "uri": str(tmp_path / "x"), "description": "one"}
    key = {"Idempotency-Key": "k1"}
    first, second = (client.post("/v1/datasets", json=new, headers=key) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert second.headers["Idempotency-Replayed"] == "true"
    assert first.headers["Location"] == second.headers["Location"] == "/v1/datasets/x"
    other = client.post("/v1/datasets", json=new | {"description": "two"})
    assert other.status_code == 409 and "PATCH" in other.json()["next"]
    assert client.patch("/v1/datasets/x", json={"description": "two"}).status_code == 200
    assert client.get("/v1/datasets/x").json()["description"] == "two"
    gone = client.delete("/v1/datasets/x")
    assert gone.status_code == 204 and "content-type" not in gone.headers


def test_lists_and_weak_tags_in_if_match(start: Start, folder, tmp_path) -> None:
    import shutil

    shutil.copytree(folder[0], tmp_path / "copy")
    client = start(datasets={"demo": str(tmp_path / "copy")})
    _, first, second = folder
    url = "/v1/datasets/demo/refs/main"

    def move(digest: str, **headers: str) -> int:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.put(url, json={"digest": digest}, headers=sent).status_code

    assert move(second, If_None_Match="*") == 412, "it exists"
    assert move(first, If_Match=f'W/"{second}"') == 412, "weak tags never match"
    assert move(first, If_Match=f'"{"0" * 64}", "{second}"') == 200
    assert move(second, If_Match="*") == 200


def test_a_token_of_any_scope_may_ask_what_it_is_and_readers_see_no_places(
    start: Start, folder
) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()

    def get(path: str, *scopes: str, **options: Any) -> Any:
        text = create_token(database, label="x", scopes=list(scopes), **options)[1]
        with open_client(str(client.base_url), text) as own:
            return own.get(path)

    for scope in ("jobs", "publish", "admin"):
        assert get("/v1/me", scope).status_code == 200
    assert get("/v1/jobs", "jobs").status_code == 200
    assert get("/v1/datasets/demo", "read").json()["uri"] is None
    assert get("/v1/datasets/demo", "read", "jobs").json()["uri"] == str(folder[0])
    assert str(folder[0]) not in get("/", "read").text
    assert get("/metrics", "read", datasets=["demo"]).status_code == 403


def test_a_body_that_does_not_come_is_given_up(start: Start) -> None:
    client = start(request_seconds=1.0)
    host, port = client.base_url.host, client.base_url.port
    with socket.create_connection((host, port), timeout=60) as slow:
        slow.sendall(
            f"POST /v1/datasets HTTP/1.1\r\nHost: {host}\r\nContent-Length: 50\r\n"
            "Content-Type: application/json\r\n\r\n{".encode()
        )
        assert slow.recv(4096).split()[1] == b"408"


def test_who_hangs_up_in_a_body_leaves_no_traceback(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    client = start()
    host, port = client.base_url.host, client.base_url.port
    for path in ("/ticket/msa", "/v1/jobs"):
        with socket.create_connection((host, port), timeout=60) as gone:
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 50\r\n\r\nq"
            gone.sendall(head.encode())
    end = time.monotonic() + 60
    while client.get("/metrics").text.count('status="499"') < 4:  # two lines each
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not caplog.records


def test_a_head_that_does_not_come_is_given_up(start: Start) -> None:
    client = start(request_seconds=1.0)
    host, port = client.base_url.host, client.base_url.port
    began = time.monotonic()
    with socket.create_connection((host, port), timeout=60) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert slow.recv(4096) == b""
    with socket.create_connection((host, port), timeout=60) as slow:
        slow.sendall(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\nGET /heal".encode())
        answer = b"".join(iter(lambda: slow.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200") and time.monotonic() - began < 60


def test_what_the_server_itself_refuses_is_problem_json_too(served) -> None:
    host, port = served.client.base_url.host, served.client.base_url.port

    def sent(data: bytes) -> bytes:
        with socket.create_connection((host, port), timeout=60) as raw:
            with contextlib.suppress(OSError):  # it may hang up before all of it went out
                raw.sendall(data)
            return b"".join(iter(lambda: raw.recv(65536), b""))

    head = b"HTTP/1.1\r\nHost: x\r\n"
    for data, status, code in (
        (b"GET /" + b"a" * 70_000 + b" " + head + b"\r\n", 431, b"head_too_long"),
        (b"GET / " + head + b"X-Long: " + b"a" * 70_000, 431, b"head_too_long"),
        (b"GET / " + head + b"X-Odd: a" + b"\r\nX: b" * 30_000, 431, b"head_too_long"),
        (b"no http at all\r\n\r\n", 400, b"bad_http"),
        (b"GET / " + head + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400, b"bad_http"),
    ):
        answer = sent(data)
        assert answer.split()[1] == str(status).encode(), (data[:30], answer)
        assert b"application/problem+json" in answer and code in answer
    fine = (
        b"GET /healthz?"
        + b"a" * 60_000
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )
    assert sent(fine).startswith(b"HTTP/1.1 200")

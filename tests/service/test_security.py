"""Who may do what, and what no request can do."""

from __future__ import annotations

import re
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from tests.service.conftest import Start, until_noticed

from evofeed.errors import AccessDenied
from evofeed.service import ServiceSettings, create_app
from evofeed.service.access.auth import SCOPES, create_token, make_start_token, revoke_token
from evofeed.service.access.limits import RateLimiter
from evofeed.service.database.database import Database
from evofeed.service.database.tables import Base, TokenRow
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import make_router
from evofeed.store import Dataset


@pytest.fixture
def guarded(start_any: Start, folder) -> tuple[httpx.Client, Database]:
    """A service that asks for tokens, and its database."""
    client = start_any(auth="on", datasets={"demo": str(folder[0])})
    return client, start_any.database()


def token(database: Database, *scopes: str, **options: Any) -> str:
    return create_token(database, label="a test", scopes=list(scopes), **options)[1]


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def routes(client: httpx.Client) -> list[tuple[str, str]]:
    """Every method and path there is, with something harmless in each parameter."""
    found = []
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        filled = re.sub(r"\{(digest|token_id|job_id|webhook_id)\}", "0" * 16, path)
        filled = filled.replace("{name}", "demo").replace("{ref}", "main")
        filled = re.sub(r"\{[a-z_]+\}", "x", filled)
        found += [(method.upper(), filled) for method in operations]
    pages = ["/", "/ui/datasets/demo", "/ui/jobs/0000000000000000"]
    chain = f"/ui/datasets/demo/snapshots/{'0' * 64}/chains/x"
    pages += [chain, f"{chain}/alignment.png", f"{chain}/files/x.a3m"]
    pages += [f"/ui/datasets/demo/export.{kind}" for kind in ("csv", "parquet", "fasta")]
    pages += sorted(PUBLIC - set(found_paths(found)))
    return found + [("GET", path) for path in pages]


def found_paths(found: list[tuple[str, str]]) -> list[str]:
    return [path for _, path in found]


PUBLIC = {"/healthz", "/readyz", "/v1/config", "/openapi.json", "/ui/api", "/ui/login"}
PUBLIC |= {f"/static/{file}" for file in ("style.css", "drawing.css", "page.js", "structure.js")}
NEEDS = {  # what a token must at least have; everything else only reads
    ("POST", "/v1/datasets"): "publish",
    ("DELETE", "/v1/datasets/demo"): "admin",
    ("PATCH", "/v1/datasets/demo"): "publish",
    ("PUT", "/v1/datasets/demo/refs/main"): "publish",
    ("PUT", "/v1/datasets/demo/refs/main/policy"): "admin",
    ("POST", "/v1/tokens"): "admin",
    ("GET", "/v1/tokens"): "admin",
    ("DELETE", f"/v1/tokens/{'0' * 16}"): "admin",
    ("GET", "/v1/audit"): "admin",
}
WRITES = re.compile(
    r"/v1/(runs(/\w+)?|datasets/demo/"
    r"(refs/main|merge|missing-shards|snapshots(/\w+)?|shards/[\w.]+))"
)


def test_without_a_token_nothing_but_health_answers(guarded) -> None:
    client, _ = guarded
    there = routes(client)
    assert len(there) > 20
    for method, path in there:
        answer = client.request(method, path)
        to_login = answer.headers.get("location", "").startswith("/ui/login")
        status = 401 if to_login else answer.status_code
        assert (status == 401) == (path not in PUBLIC), (method, path, status)


def test_every_route_wants_its_scope_and_no_other_will_do(guarded) -> None:
    client, database = guarded
    tokens = {scope: token(database, scope) for scope in SCOPES}
    for method, path in routes(client):
        if path in PUBLIC:
            continue
        jobs = "/jobs" in path and (method != "GET" or path.endswith("/log"))
        jobs = jobs or "/webhooks" in path or path.startswith(("/ticket", "/result", "/template"))
        needed = {NEEDS.get((method, path)) or ("jobs" if jobs else "read")}
        if method in ("PUT", "POST", "DELETE") and WRITES.fullmatch(path):
            needed = {"publish"}
        if path.startswith(("/v1/jobs", "/ui/jobs")) and not jobs:
            needed.add("jobs")  # whoever submits may look
        if path == "/v1/me":
            needed = set(SCOPES)
        for scope, text in tokens.items():
            if scope in needed and method == "DELETE":
                continue  # it would work
            status = client.request(method, path, headers=bearer(text)).status_code
            assert (status == 403) == (scope not in needed), (method, path, scope, status)
            no_search = path.startswith("/ticket") and status == 503  # it has no databases
            assert status != 401 and (status < 500 or no_search)


def test_a_token_for_one_dataset_sees_no_other(guarded, folder) -> None:
    client, database = guarded
    mine = bearer(token(database, *SCOPES, datasets=["mine"]))
    every = bearer(token(database, *SCOPES))
    assert client.get("/v1/datasets/demo", headers=mine).status_code == 403
    assert client.get("/v1/datasets/nowhere", headers=mine).status_code == 403
    assert client.get("/v1/datasets", headers=mine).json()["datasets"] == []
    assert [d["name"] for d in client.get("/v1/datasets", headers=every).json()["datasets"]] == [
        "demo"
    ]
    new = {"name": "theirs", "uri": str(folder[0])}
    assert client.post("/v1/datasets", json=new, headers=mine).status_code == 403
    for path in ("/v1/tokens", "/v1/audit"):
        assert client.get(path, headers=mine).status_code == 403


def test_a_dataset_opens_over_http_with_a_token_and_not_without(guarded, folder) -> None:
    client, database = guarded
    url = f"{str(client.base_url).rstrip('/')}/v1/datasets/demo"
    given = token(database, "read", datasets=["demo"])
    with Dataset.open(url, token=given) as remote:
        assert remote.digest == folder[2] and remote[0].num_res > 0
        revoke_token(database, given.split("_")[1])
        until_noticed()
        with pytest.raises(AccessDenied, match=r"401 .the token was revoked.*EVOFEED_TOKEN"):
            remote[0]
    with pytest.raises(AccessDenied, match=r"401 .this needs a token"):
        Dataset.open(url)
    other = token(database, "read", datasets=["other"])
    with pytest.raises(AccessDenied, match=r"403 .this token is not for dataset 'demo'"):
        Dataset.open(url, token=other)


def test_a_token_makes_no_wider_token_than_itself(guarded) -> None:
    client, database = guarded
    narrow = bearer(token(database, "admin", "read", datasets=["demo"]))
    for body in (
        {"label": "x", "scopes": ["publish"], "datasets": ["demo"]},
        {"label": "x", "scopes": ["read"]},
        {"label": "x", "scopes": ["read"], "datasets": ["demo", "other"]},
    ):
        assert client.post("/v1/tokens", json=body, headers=narrow).status_code == 403
    good = {"label": "x", "scopes": ["read"], "datasets": ["demo"], "seconds": 60}
    made = client.post("/v1/tokens", json=good, headers=narrow)
    assert made.status_code == 201
    assert client.get("/v1/datasets/demo", headers=bearer(made.json()["token"])).status_code == 200


def test_expired_revoked_altered_and_malformed_tokens_are_refused(guarded) -> None:
    client, database = guarded
    good = token(database, "read", "admin")
    short = token(database, "read", seconds=3600)
    assert client.get("/v1/datasets", headers=bearer(short)).status_code == 200
    with database.write() as session:  # an hour later
        session.get_one(TokenRow, short.split("_")[1]).expires_at = time.time() - 0.001
    until_noticed()
    altered = good[:-1] + ("A" if good[-1] != "A" else "B")
    unknown = f"evf_{'0' * 16}{good[20:]}"
    for wrong in (
        short,
        altered,
        unknown,
        "-",
        "evf_",
        good.upper(),
        f"{good}x",
        "é" * 9,
        "x" * 9000,
    ):
        answer = client.get("/v1/datasets", headers={"Authorization": b"Bearer " + wrong.encode()})
        assert answer.status_code == 401, wrong
        assert "Bearer" in answer.headers["www-authenticate"]
    basic = client.get("/v1/datasets", headers={"Authorization": f"Basic {good}"})
    assert basic.status_code == 401
    token_id = good.split("_")[1]
    assert client.delete(f"/v1/tokens/{token_id}", headers=bearer(good)).status_code == 204
    assert client.get("/v1/datasets", headers=bearer(good)).status_code == 401


def test_no_secret_is_at_rest_or_in_the_log(guarded, tmp_path: Path, caplog) -> None:
    client, database = guarded
    caplog.set_level("DEBUG")
    admin = token(database, "admin", "read")
    body = {"label": "x", "scopes": ["read"]}
    made = client.post("/v1/tokens", json=body, headers=bearer(admin)).json()["token"]
    client.get(f"/v1/datasets?after=x&token={made}", headers=bearer(made))
    secrets = [text.split("_", 2)[2] for text in (admin, made)]
    with database.read() as session:
        tables = [session.execute(table.select()).all() for table in Base.metadata.sorted_tables]
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("service.sqlite3*"))
    assert admin.split("_")[1] in repr(tables)
    for secret in secrets:
        assert secret not in repr(tables) and secret.encode() not in files
        ours = [r.getMessage() for r in caplog.records if r.name.startswith(("evofeed", "uvicorn"))]
        assert ours and not any(secret in line for line in ours)


def test_a_token_answer_is_never_kept_for_an_idempotency_key(guarded) -> None:
    client, database = guarded
    headers = bearer(token(database, "admin", "read")) | {"Idempotency-Key": "k1"}
    answer = client.post("/v1/tokens", json={"label": "x", "scopes": ["read"]}, headers=headers)
    assert answer.status_code == 422


def test_a_cookie_reads_but_never_writes(guarded) -> None:
    client, database = guarded
    text = token(database, *SCOPES)
    with httpx.Client(base_url=client.base_url) as browser:
        browser.post("/ui/login", data={"token": text})
        assert browser.cookies and text not in str(browser.cookies)
        assert browser.get("/v1/datasets/demo").status_code == 200
        assert browser.delete("/v1/datasets/demo").status_code == 401
        kept = dict(browser.cookies)
        revoke_token(database, text.split("_")[1])
        assert browser.get("/v1/datasets/demo").status_code == 401
    with httpx.Client(base_url=client.base_url, cookies=kept) as thief:
        assert thief.get("/v1/datasets/demo").status_code == 401


def test_the_audit_tells_who_did_what(guarded) -> None:
    client, database = guarded
    text = token(database, "admin", "read")
    lines = client.get("/v1/audit", headers=bearer(text)).json()["lines"]
    assert lines[0]["action"] == "token.create" and lines[0]["principal"] == "local"
    assert {"dataset.register", "token.create"} <= {line["action"] for line in lines}
    first = client.get("/v1/audit?limit=1", headers=bearer(text)).json()
    rest = client.get(f"/v1/audit?before={first['next']}", headers=bearer(text)).json()
    assert first["lines"] + rest["lines"] == lines


def test_a_route_without_a_scope_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="@scope"):
        make_router().get("/oops")(lambda: None)


ODD = [
    "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%00b", "a%0ab", ".hidden",
    "a b", "é", "x" * 129, "'; DROP TABLE datasets; --", '"', "a\\b", "CON:", "*", "$(id)",
    "<script>", "~", "-x", "a..b/../c",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_reach_no_file_and_no_500(served, odd) -> None:
    for path in ("/v1/datasets/{}", "/v1/datasets/{}/refs/main", "/v1/datasets/demo/refs/{}",
                 "/v1/datasets/demo/snapshots/{}", "/v1/datasets/demo/shards/{}",
                 "/v1/datasets/demo/shards/{}.arrow",
                 f"/v1/datasets/demo/snapshots/{served.second}/chains/{{}}"):  # fmt: skip
        url = f"{served.url}{path.format(odd)}"
        answer = served.client.get(httpx.URL(url))
        assert answer.status_code in (404, 422), (path, answer.text)
        assert b"root:" not in answer.content


def test_an_encoded_traversal_sent_raw_is_refused(served) -> None:
    """The client library tidies paths; a socket does not."""
    import socket

    host, port = served.client.base_url.host, served.client.base_url.port
    for path in ("/v1/datasets/demo/shards/../../../../../etc/passwd",
                 "/v1/datasets/demo/shards/..%2f..%2f..%2fetc%2fpasswd",
                 "/static/../../../etc/passwd", "/static/..%2f..%2fsettings.py",
                 "//etc/passwd", "/datasets/../../etc/passwd"):  # fmt: skip
        with socket.create_connection((host, port), timeout=300) as raw:
            raw.sendall(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda s=raw: s.recv(65536), b""))
        assert answer.split()[1] in (b"404", b"422"), path
        assert b"root:" not in answer


@pytest.mark.parametrize(
    "uri",
    ["relative/path", "../up", "http://127.0.0.1:1/v1/datasets/x", "ftp://x/y", "file:relative",
     "", "\x00", "javascript:alert(1)", "x" * 3000],
)  # fmt: skip
def test_a_place_that_is_none_is_refused(start: Start, uri) -> None:
    answer = start().post("/v1/datasets", json={"name": "x", "uri": uri})
    assert answer.status_code == 422


def test_with_tokens_only_opened_places_can_be_registered(start: Start, folder, tmp_path) -> None:
    client = start(auth="on", dataset_roots=("/data/open", "s3://bucket/a"))
    text = token(start.database(), "publish")
    for uri, status in (
        ("/data/open/x", 201),
        ("file:///data/open/y", 201),
        ("s3://bucket/a/b", 201),
        ("/data/opened", 403),
        ("/data/open/../secret", 403),
        ("s3://bucket/ab", 403),
        ("/etc", 403),
    ):
        new = {"name": f"d{abs(hash(uri))}", "uri": uri}
        assert client.post("/v1/datasets", json=new, headers=bearer(text)).status_code == status, (
            uri
        )


def test_a_link_leads_out_of_no_opened_place(start: Start, folder, tmp_path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    (tmp_path / "also-opened").symlink_to(opened)  # the operator's own link is fine
    (opened / "out").symlink_to(folder[0])
    (opened / "in").symlink_to(opened / "data")
    (opened / "round").symlink_to(opened / "round")
    client = start(auth="on", dataset_roots=(str(tmp_path / "also-opened"),))
    headers = bearer(token(start.database(), "publish"))

    def register(name: str) -> int:
        new = {"name": name, "uri": str(opened / name)}
        return client.post("/v1/datasets", json=new, headers=headers).status_code

    assert [register(name) for name in ("out", "in", "round", "data")] == [403, 201, 201, 409]


def test_names_that_differ_in_case_only_cannot_both_be(start: Start, folder) -> None:
    client = start()
    uri = str(folder[0])
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": uri}).status_code == 201
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": uri}).status_code == 200
    assert client.post("/v1/datasets", json={"name": "pdb", "uri": uri}).status_code == 409
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": "/else"}).status_code == 409


def test_a_body_beyond_the_cap_is_413_with_or_without_a_length(start: Start) -> None:
    client = start(max_body=4096)
    big = b'{"name": "' + b"x" * 5000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/datasets", content=big, headers=headers).status_code == 413
    chunked = client.post("/v1/datasets", content=iter([big[:3000], big[3000:]]), headers=headers)
    assert chunked.status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999999999", "x"])
def test_an_odd_content_length_is_refused(served, length) -> None:
    try:
        answer = served.client.post("/v1/datasets", headers={"Content-Length": length}, content=b"")
    except httpx.HTTPError:
        return  # the server hung up on it
    assert answer.status_code in (400, 413, 422)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"name": 1}'])
def test_a_malformed_body_is_a_4xx(start: Start, body) -> None:
    client = start()
    for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        answer = client.post("/v1/datasets", content=body, headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_web_page_that_rebinds_its_name_to_loopback_is_turned_away(served) -> None:
    answer = served.client.get("/v1/datasets", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
    assert served.client.get("/healthz", headers={"Host": "localhost:99"}).status_code == 200


def test_a_form_post_of_a_foreign_page_registers_nothing(start: Start, folder) -> None:
    client = start()
    text = '{"name": "x", "uri": "/tmp"}'
    assert (
        client.post(
            "/v1/datasets", content=text, headers={"Content-Type": "text/plain"}
        ).status_code
        == 422
    )
    assert client.get("/v1/datasets").json()["datasets"] == []


def test_tokens_are_asked_for_on_loopback_too(tmp_path: Path) -> None:
    def settings(**changes: Any) -> ServiceSettings:
        return ServiceSettings(home=tmp_path, database_url=SecretStr(""), **changes)

    for host, prints in (("127.0.0.1", True), ("::1", True), ("0.0.0.0", False)):
        assert settings(host=host).auth_on and settings(host=host).prints_token == prints
    assert settings(auth="read").auth_on and not settings(auth="off").auth_on


def test_the_printed_token_signs_a_browser_in_and_ends_with_the_next_start(start: Start) -> None:
    client = start(auth="auto")
    database = start.database()
    assert client.post("/v1/datasets", json={"name": "x", "uri": "/x"}).status_code == 401
    text = make_start_token(database)
    there = client.get("/ui/login", params={"token": text, "then": "/ui/api?x=1"})
    assert (there.status_code, there.headers["location"]) == (303, "/ui/api?x=1")
    assert client.get("/").status_code == 200 and "sign out" in client.get("/").text
    assert "sign out" not in start(auth="off").get("/").text  # nobody signed in
    me = client.get("/v1/me", headers=bearer(text)).json()
    assert me["id"] == "local" and set(me["scopes"]) == set(SCOPES)
    assert client.post("/ui/logout").status_code == 303
    assert client.get("/").headers["location"] == "/ui/login?then=%2F"
    away = client.get("/ui/login", params={"token": text, "then": "//evil.example/"})
    assert away.headers["location"] == "/"
    make_start_token(database)
    assert client.get("/v1/me", headers=bearer(text)).status_code == 401


def test_a_service_for_readers_wants_a_token_for_anything_else(start: Start, folder) -> None:
    client = start(auth="read", datasets={"demo": str(folder[0])})
    assert client.get("/v1/datasets/demo/refs/main").status_code == 200
    assert client.get("/v1/datasets/demo").json()["uri"] is None
    for method, path in (("POST", "/v1/datasets"), ("POST", "/v1/jobs"), ("GET", "/v1/audit")):
        assert client.request(method, path).status_code == 401
    text = token(start.database(), *SCOPES)
    assert client.get("/v1/audit", headers=bearer(text)).status_code == 200


def test_whoever_guesses_tokens_is_slowed_down_and_in_the_audit(start: Start) -> None:
    client = start(auth="on")
    guess = f"evf_{'0' * 16}_{'x' * 43}"
    statuses = [client.get("/v1/me", headers=bearer(guess)).status_code for _ in range(80)]
    assert set(statuses[:20]) == {401} and statuses[-1] == 429
    pages = [client.post("/ui/login", data={"token": guess}).status_code for _ in range(3)]
    assert pages[-1] == 429
    text = token(start.database(), "admin")
    assert client.get("/v1/me", headers=bearer(text)).status_code == 200
    lines = client.get("/v1/audit", headers=bearer(text)).json()["lines"]
    failed = [line for line in lines if line["action"] == "auth.fail"]
    assert 1 <= len(failed) <= 5 and failed[0]["subject"] == "127.0.0.1"


def test_too_many_requests_are_429_and_say_until_when(start: Start, folder) -> None:
    client = start(rate_per_second=0.001, rate_burst=3, datasets={"demo": str(folder[0])})
    answers = [client.get("/v1/datasets") for _ in range(5)]
    assert [a.status_code for a in answers] == [200, 200, 200, 429, 429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 1000
    assert answers[-1].json()["next"]
    digest = folder[2]  # manifests, indexes and shards are not counted
    assert client.get(f"/v1/datasets/demo/snapshots/{digest}").status_code == 200
    assert client.get("/healthz").status_code == 200


def test_a_bucket_fills_again_with_time() -> None:
    now = [0.0]
    limiter = RateLimiter(2.0, 2, clock=lambda: now[0])
    for _ in range(2):
        limiter.spend("a")
    with pytest.raises(Problem):
        limiter.spend("a")
    limiter.spend("b")
    now[0] = 0.5
    limiter.spend("a")
    with pytest.raises(Problem) as refused:
        limiter.spend("a")
    assert refused.value.headers["Retry-After"] == "1"


def test_an_old_postgres_or_a_wrong_url_is_one_line_without_the_password() -> None:
    from evofeed.errors import ServiceError

    url = SecretStr("postgresql://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(ServiceError, match="does not answer") as error:
        create_app(ServiceSettings(database_url=url))
    assert "hunter2" not in str(error.value)
    with pytest.raises(ServiceError, match="EVOFEED_DATABASE_URL") as error:
        create_app(ServiceSettings(database_url=SecretStr("hunter2")))
    assert "hunter2" not in str(error.value)


def test_the_database_file_is_only_for_its_owner(start: Start, tmp_path: Path) -> None:
    start(home=tmp_path / "h")
    mode = (tmp_path / "h").stat().st_mode & 0o777
    assert mode == 0o700
    with sqlite3.connect(tmp_path / "h" / "service.sqlite3") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()

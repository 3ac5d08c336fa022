"""Who may do what: every role at every route what the route's own mark says."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from pydantic import SecretStr
from tests.service.conftest import Start, bearer, id_of, until_trusted

from evofeed.base.errors import AccessDenied
from evofeed.service import ServiceSettings
from evofeed.service.access.auth import COOKIE, PUBLIC, SCOPES, make_start_token, revoke_token
from evofeed.service.database.tables import AuditRow, Base, TokenRow
from evofeed.service.pages import ROUTERS as PAGES
from evofeed.service.requests.routing import ScopedRoute, make_router
from evofeed.service.routes import ROUTERS
from evofeed.store import Dataset


@pytest.fixture
def guarded(start: Start, folder) -> Start:
    """A service that asks for tokens."""
    start(auth="on", datasets={"demo": str(folder[0])})
    return start


def test_a_token_for_one_dataset_sees_no_other(guarded: Start, folder) -> None:
    mine, every = guarded.as_(*SCOPES, datasets=["mine"]), guarded.as_(*SCOPES)
    assert mine.get("/v1/datasets/nowhere").status_code == 403
    manifest, tag = f"/v1/datasets/demo/snapshots/{folder[2]}", f'"{folder[2]}"'
    some = {"Range": "bytes=0-9"}
    asked = ("GET", {"If-None-Match": tag}, 304), ("HEAD", {}, 200), ("GET", some, 206)
    for method, headers, status in asked:
        assert every.request(method, manifest, headers=headers).status_code == status
        assert mine.request(method, manifest, headers=headers).status_code == 403
    for client, names in ((mine, []), (every, ["demo"])):
        assert [d["name"] for d in client.get("/v1/datasets").json()["datasets"]] == names
    new = {"name": "theirs", "uri": str(folder[0])}
    assert mine.post("/v1/datasets", json=new).status_code == 403
    for path in ("/v1/tokens", "/v1/audit", "/metrics"):
        assert mine.get(path).status_code == 403


def test_a_dataset_opens_over_http_with_a_token_and_not_without(guarded: Start, folder) -> None:
    url = f"{guarded.url}/v1/datasets/demo"
    given = guarded.token("read", datasets=["demo"])
    with Dataset.open(url, token=given) as remote:
        assert remote.digest == folder[2] and remote[0].num_res > 0
        revoke_token(guarded.database, id_of(given))
        until_trusted()
        with pytest.raises(AccessDenied, match=r"401 .the token was revoked.*EVOFEED_TOKEN"):
            remote[0]
    with pytest.raises(AccessDenied, match=r"401 .this needs a token"):
        Dataset.open(url)
    other = guarded.token("read", datasets=["other"])
    with pytest.raises(AccessDenied, match=r"403 .this token is not for dataset 'demo'"):
        Dataset.open(url, token=other)


def test_a_token_makes_no_wider_token_than_itself(guarded: Start) -> None:
    narrow, good = guarded.as_("admin", "read", datasets=["demo"]), {"label": "x"}
    for scopes, datasets, status in (
        (["publish"], ["demo"], 403),
        (["read"], None, 403),
        (["read"], ["demo", "other"], 403),
        (["read"], ["demo"], 201),
    ):
        new = good | {"scopes": scopes, "datasets": datasets, "seconds": 60}
        made = narrow.post("/v1/tokens", json=new)
        assert made.status_code == status, new
    own = guarded.client(made.json()["token"])
    assert own.get("/v1/datasets/demo").status_code == 200


def test_expired_revoked_altered_and_malformed_tokens_are_refused(guarded: Start) -> None:
    good, short = guarded.token("read", "admin"), guarded.token("read", seconds=3600)
    client = guarded.client()
    assert client.get("/v1/datasets", headers=bearer(short)).status_code == 200
    with guarded.database.write() as session:  # an hour later
        session.get_one(TokenRow, id_of(short)).expires_at = time.time() - 0.001
    until_trusted()
    altered = good[:-1] + ("A" if good[-1] != "A" else "B")
    unknown = f"evf_{'0' * 16}{good[20:]}"
    odd = "-", "evf_", good.upper(), f"{good}x", "é" * 9, "x" * 9000
    for wrong in (short, altered, unknown, *odd):
        answer = client.get("/v1/datasets", headers={"Authorization": b"Bearer " + wrong.encode()})
        assert answer.status_code == 401, wrong
        assert "Bearer" in answer.headers["www-authenticate"]
    basic = client.get("/v1/datasets", headers={"Authorization": f"Basic {good}"})
    assert basic.status_code == 401
    assert client.delete(f"/v1/tokens/{id_of(good)}", headers=bearer(good)).status_code == 204
    assert client.get("/v1/datasets", headers=bearer(good)).status_code == 401


def test_no_secret_is_at_rest_or_in_the_log(guarded: Start, tmp_path: Path, caplog) -> None:
    caplog.set_level("DEBUG")
    admin, body = guarded.token("admin", "read"), {"label": "x", "scopes": ["read"]}
    made = guarded.client(admin).post("/v1/tokens", json=body).json()["token"]
    guarded.client(made).get(f"/v1/datasets?after=x&token={made}")
    with guarded.database.read() as session:
        tables = [session.execute(table.select()).all() for table in Base.metadata.sorted_tables]
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("service.sqlite3*"))
    ours = [r.getMessage() for r in caplog.records if r.name.startswith(("evofeed", "uvicorn"))]
    assert id_of(admin) in repr(tables) and ours
    for secret in (text.split("_", 2)[2] for text in (admin, made)):
        assert secret not in repr(tables) and secret.encode() not in files
        assert not any(secret in line for line in ours)


def test_a_cookie_reads_but_never_writes(guarded: Start) -> None:
    text, browser = guarded.token(*SCOPES), guarded.client()
    wrong = browser.post("/ui/login", data={"token": "evf_nope"})
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    browser.post("/ui/login", data={"token": text})
    assert browser.cookies and text not in str(browser.cookies)
    assert browser.get("/v1/datasets/demo").status_code == 200
    assert browser.delete("/v1/datasets/demo").status_code == 401
    kept = dict(browser.cookies)[COOKIE]
    for forged in (f"{kept}x", kept.replace(".", ".A", 1), '"\\000"', "local.a.b"):
        answer = guarded.client().get("/v1/me", headers={"Cookie": f"{COOKIE}={forged}"})
        assert answer.status_code == 401, forged
    revoke_token(guarded.database, id_of(text))
    until_trusted()
    assert browser.get("/v1/datasets/demo").status_code == 401


def test_who_signs_out_ends_every_copy_of_the_cookie_and_nobody_elses(guarded: Start) -> None:
    texts = [guarded.token("read") for _ in range(2)]
    browsers = mine, _, copy = [guarded.client() for _ in range(3)]
    for browser, text in zip(browsers, texts, strict=False):
        assert browser.post("/ui/login", data={"token": text}).status_code == 303
    copy.cookies.update(mine.cookies)
    assert [one.get("/v1/me").status_code for one in browsers] == [200] * 3
    assert mine.post("/ui/logout").status_code == 303 and not mine.cookies
    assert [one.get("/v1/me").status_code for one in browsers] == [401, 200, 401]
    assert copy.post("/ui/logout").status_code == 303, "and once more harms nothing"
    again = mine.post("/ui/login", data={"token": texts[0]})
    assert again.status_code == 303 and mine.get("/v1/me").status_code == 200
    with guarded.database.read() as session:
        assert session.query(AuditRow).filter_by(action="session.end").count() == 1


def test_the_audit_tells_who_did_what(guarded: Start) -> None:
    admin = guarded.as_("admin", "read")
    lines = admin.get("/v1/audit").json()["lines"]
    assert lines[0]["action"] == "token.create" and lines[0]["principal"] == "local"
    assert {"dataset.register", "token.create"} <= {line["action"] for line in lines}
    first = admin.get("/v1/audit?limit=1").json()
    rest = admin.get(f"/v1/audit?before={first['next']}").json()
    assert first["lines"] + rest["lines"] == lines


def test_a_route_without_a_scope_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="@scope"):
        make_router().get("/oops")(lambda: None)


def test_tokens_are_asked_for_on_loopback_too(tmp_path: Path) -> None:
    def settings(**changes: Any) -> ServiceSettings:
        return ServiceSettings(home=tmp_path, database_url=SecretStr(""), **changes)

    for host, prints in (("127.0.0.1", True), ("::1", True), ("0.0.0.0", False)):
        assert settings(host=host).auth_on and settings(host=host).prints_token == prints
    assert settings(auth="read").auth_on and not settings(auth="off").auth_on


def test_the_printed_token_signs_a_browser_in_and_ends_with_the_next_start(start: Start) -> None:
    client = start(auth="auto")
    assert client.post("/v1/datasets", json={"name": "x", "uri": "/x"}).status_code == 401
    text = make_start_token(start.database)
    there = client.get("/ui/login", params={"token": text, "then": "/ui/datasets/x?x=1"})
    assert (there.status_code, there.headers["location"]) == (303, "/ui/datasets/x?x=1")
    assert client.get("/").status_code == 200 and "sign out" in client.get("/").text
    me = client.get("/v1/me", headers=bearer(text)).json()
    assert me["id"] == "local" and set(me["scopes"]) == set(SCOPES)
    assert client.post("/ui/logout").status_code == 303
    assert client.get("/").headers["location"] == "/ui/login?then=%2F"
    away = client.get("/ui/login", params={"token": text, "then": "//evil.example/"})
    assert away.headers["location"] == "/"
    client.get("/ui/login", params={"token": text})
    assert client.get("/").status_code == 200
    make_start_token(start.database)
    until_trusted()
    assert client.get("/v1/me", headers=bearer(text)).status_code == 401
    assert client.get("/").status_code == 303, "its cookie ends with it"


ROUTES = [
    route
    for router in (*ROUTERS, *PAGES)
    for route in router.routes
    if route.name != "login"  # it takes the token as a field: tests of the dashboard
]
ALIKE = {"name": "demo", "ref": "main", "snapshot": "main", "job_id": "0" * 16,
         "token_id": "0" * 16, "digest": "0" * 64, "file": "style.css"}  # fmt: skip


def harmless(route: APIRoute) -> tuple[str, str]:
    """Method and path, with something that is there or could be in each parameter."""
    (method,) = route.methods
    path = re.sub(r"\{(\w+)\}", lambda match: ALIKE.get(match[1], "x"), route.path)
    return method, path


def status(client: httpx.Client, route: APIRoute, text: str = "") -> int:
    method, path = harmless(route)
    answer = client.request(method, path, headers=bearer(text))
    to_login = answer.headers.get("location", "").startswith("/ui/login")
    assert answer.status_code < 500, (method, path, answer.text)
    return 401 if to_login and not path.startswith("/ui/log") else answer.status_code


def test_every_role_gets_at_every_route_what_its_mark_says(guarded: Start) -> None:
    client = guarded.client()
    good = {scope: guarded.token(scope) for scope in SCOPES}
    elsewhere = guarded.token(*SCOPES, datasets=["other"])
    revoked, expired = (guarded.token(*SCOPES, seconds=3600) for _ in range(2))
    revoke_token(guarded.database, id_of(revoked))
    with guarded.database.write() as session:
        session.get_one(TokenRow, id_of(expired)).expires_at = time.time() - 1
    assert len(ROUTES) > 40
    for route in ROUTES:
        assert isinstance(route, ScopedRoute)
        scopes, where = route.mark.scopes, harmless(route)
        public = PUBLIC in scopes
        for text in ("", revoked, expired, f"{revoked}x"):
            found = status(client, route, text)
            assert (found == 401) == (not public), (where, text[:9], found)
        if public:
            continue
        if "{name}" in route.path:
            assert status(client, route, elsewhere) == 403, where
        for scope, text in good.items():
            may = bool({scope, *(["read"] if scope == "admin" else [])} & set(scopes))
            if may and where[0] == "DELETE":
                continue  # it would work
            found = status(client, route, text)
            assert (found == 403) == (not may), (where, scope, found)


@pytest.mark.parametrize(("auth", "anonymous"), [("read", {"read"}), ("off", set(SCOPES))])
def test_whoever_has_no_token_may_what_the_service_allows(
    start: Start, folder, auth: str, anonymous: set[str]
) -> None:
    client = start(auth=auth, datasets={"demo": str(folder[0])})
    assert "sign out" not in client.get("/").text  # nobody signed in
    for route in ROUTES:
        assert isinstance(route, ScopedRoute)
        may = bool(anonymous & set(route.mark.scopes)) or PUBLIC in route.mark.scopes
        if route.mark.form or (may and harmless(route)[0] == "DELETE"):
            continue  # a form wants the word of its session: tests of forms
        assert (status(client, route) == 401) == (not may), harmless(route)

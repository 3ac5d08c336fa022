"""Every role at every route: what each may do is what the route's own mark says."""

from __future__ import annotations

import re
import time

import httpx
import pytest
from fastapi.routing import APIRoute
from tests.service.conftest import Start, bearer, token

from evofeed.service.access.auth import PUBLIC, SCOPES, revoke_token
from evofeed.service.database.tables import TokenRow
from evofeed.service.pages import ROUTERS as PAGES
from evofeed.service.requests.routing import ScopedRoute
from evofeed.service.routes import ROUTERS

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
    answer = client.request(method, path, headers=bearer(text) if text else {})
    to_login = answer.headers.get("location", "").startswith("/ui/login")
    assert answer.status_code < 500, (method, path, answer.text)
    return 401 if to_login and not path.startswith("/ui/log") else answer.status_code


def test_every_role_gets_at_every_route_what_its_mark_says(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()
    good = {scope: token(database, scope) for scope in SCOPES}
    elsewhere = token(database, *SCOPES, datasets=["other"])
    revoked, expired = (token(database, *SCOPES, seconds=3600) for _ in range(2))
    revoke_token(database, revoked.split("_")[1])
    with database.write() as session:
        session.get_one(TokenRow, expired.split("_")[1]).expires_at = time.time() - 1
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
    for route in ROUTES:
        assert isinstance(route, ScopedRoute)
        may = bool(anonymous & set(route.mark.scopes)) or PUBLIC in route.mark.scopes
        if route.mark.form or (may and harmless(route)[0] == "DELETE"):
            continue  # a form wants the word of its session: tests of forms
        assert (status(client, route) == 401) == (not may), harmless(route)

"""Signing in and out, and the files that pages load."""

from __future__ import annotations

import logging
from importlib.resources import files
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed.service.access.auth import COOKIE, PUBLIC, SESSION_SECONDS, sign_in, sign_out
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.admission import address_of
from evofeed.service.requests.forms import FormDep
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.state import Service
from evofeed.viz import LATER, SCRIPTS, script

router = make_router(tag="pages")
_log = logging.getLogger("evofeed.service.access")
_STATIC: Final = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@router.get("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def login_page(
    ctx: Context,
    token: Annotated[str, Query(max_length=200)] = "",
    then: Annotated[str, Query(max_length=2000)] = "/",
) -> Response:
    """Where a browser hands in a token, or comes with the one that a start printed."""
    if token:
        return await _enter(ctx.request, ctx.service, token, then)
    return render("login.html", ctx.request, wrong="", then=_own(then))


@router.post("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def login(ctx: Context, fields: FormDep) -> Response:
    """Begin a session."""
    return await _enter(ctx.request, ctx.service, fields.get("token", ""), fields.get("then", "/"))


@router.post("/ui/logout", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def logout(ctx: Context) -> Response:
    """End the session."""
    await run_in_threadpool(sign_out, ctx.service.database, ctx.request.cookies.get(COOKIE, ""))
    ctx.service.authority.forget()
    answer = RedirectResponse("/ui/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/static/{file}", include_in_schema=False)
@scope(PUBLIC)
def static(file: str) -> Response:
    """The style sheets and scripts of our own."""
    if file in (*SCRIPTS, *LATER):
        data = script(file).encode()
        kind = "text/css" if file.endswith(".css") else "text/javascript"
    elif file in _STATIC:
        data = (files("evofeed.service") / "static" / file).read_bytes()
        kind = _STATIC[file]
    else:
        raise Problem(404, "not_found", "no such file", next="see /openapi.json")
    # Not for long: a new version of the service has new ones of the same name.
    return Response(data, media_type=kind, headers={"Cache-Control": "public, max-age=3600"})


async def _enter(request: Request, service: Service, token: str, then: str) -> Response:
    try:
        session = await run_in_threadpool(sign_in, service.database, token)
    except Problem as problem:
        _log.warning("refused a token from %s: %s", address_of(request), problem.message)
        wrong = problem.message
        return render("login.html", request, status=problem.status, wrong=wrong, then=_own(then))
    answer = RedirectResponse(_own(then), 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(
        COOKIE,
        session,
        httponly=True,
        samesite="strict",
        secure=secure,
        max_age=int(SESSION_SECONDS),
    )
    return answer


def _own(path: str) -> str:
    """A path of ours to go to; anything else is the first page."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if fine else "/"

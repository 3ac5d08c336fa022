"""Signing in and out, the files that pages load, and the list of routes."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated, Final

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed.service.access.auth import COOKIE, PUBLIC, SESSION_SECONDS, sign_in, sign_out
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.admission import refuse
from evofeed.service.requests.forms import FormDep
from evofeed.service.requests.routing import ServiceDep, make_router, scope
from evofeed.service.state import Service

router = make_router(tag="pages")
_STATIC: Final = {
    "style.css": ("evofeed.service", "static", "text/css"),
    "page.js": ("evofeed.service", "static", "text/javascript"),
    "drawing.css": ("evofeed.drawing", "", "text/css"),
    "structure.js": ("evofeed.drawing", "", "text/javascript"),
    "icon.svg": ("evofeed.service", "static", "image/svg+xml"),
}


@router.get("/ui/api", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
def api_page(request: Request) -> HTMLResponse:
    """Every route of the HTTP interface, without a script from elsewhere."""
    return render("api.html", request, paths=request.app.openapi()["paths"])


@router.get("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def login_page(
    request: Request,
    service: ServiceDep,
    token: Annotated[str, Query(max_length=200)] = "",
    then: Annotated[str, Query(max_length=2000)] = "/",
) -> Response:
    """Where a browser hands in a token, or comes with the one that a start printed."""
    if token:
        return await _enter(request, service, token, then)
    return render("login.html", request, wrong="", then=_own(then))


@router.post("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC, repeatable=False)
async def login(request: Request, service: ServiceDep, fields: FormDep) -> Response:
    """Begin a session."""
    return await _enter(request, service, fields.text("token"), fields.text("then"))


@router.post("/ui/logout", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC, repeatable=False)
async def logout(request: Request, service: ServiceDep) -> Response:
    """End the session."""
    await run_in_threadpool(sign_out, service.database, request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/ui/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


@router.get("/static/{file}", include_in_schema=False)
@scope(PUBLIC)
def static(file: str) -> Response:
    """The style sheets and scripts of our own."""
    if file not in _STATIC:
        raise Problem(404, "not_found", "no such file", next="see /ui/api")
    package, folder, kind = _STATIC[file]
    data = (files(package) / folder / file).read_bytes()
    # Not for long: a new version of the service has new ones of the same name.
    return Response(data, media_type=kind, headers={"Cache-Control": "public, max-age=300"})


async def _enter(request: Request, service: Service, token: str, then: str) -> Response:
    try:
        session = await run_in_threadpool(sign_in, service.database, token)
    except Problem as problem:
        refused = await refuse(service, request, problem.message)
        wrong = refused.message
        return render("login.html", request, status=refused.status, wrong=wrong, then=_own(then))
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

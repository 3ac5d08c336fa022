"""The first page, those of jobs, signing in and out, and the files that pages load."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed.base.errors import DatasetMissing, EvofeedError
from evofeed.service.access.auth import COOKIE, PUBLIC, SESSION_SECONDS
from evofeed.service.database.tables import DatasetRow
from evofeed.service.jobs import queue as jobs
from evofeed.service.pages.page import render
from evofeed.service.problems import Problem
from evofeed.service.requests.forms import WORD, FormDep, bad_field
from evofeed.service.requests.routing import Context, address_of, make_router, scope
from evofeed.service.routes import jobs as routes
from evofeed.service.routes.jobs import JobId, owned_job
from evofeed.service.state import Service
from evofeed.viz import LATER, SCRIPTS, script

router = make_router(tag="pages")
_LOOK_SECONDS: Final = 3.0  # a store may take for its row of the first page


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
async def home(ctx: Context) -> HTMLResponse:
    """Datasets and jobs; a store that does not answer is a word in its own row."""
    work, only = ctx.service.work, ctx.principal.datasets
    rows = await work.run(lambda: ctx.service.catalog.datasets(limit=200, only=only))
    newest = await work.run(lambda: ctx.service.jobs.newest(only=only, limit=20))

    async def overview(row: DatasetRow) -> dict[str, Any]:
        place = {"name": row.name, "uri": row.uri if ctx.principal.sees_places else ""}
        try:
            look = partial(_overview, ctx.service, row.name)
            return place | await work.run(look, dataset=row.name, seconds=_LOOK_SECONDS)
        except (EvofeedError, OSError) as error:
            why = error.message if isinstance(error, EvofeedError) else "cannot be read"
            return place | {"trouble": why, "digest": ""}

    datasets = await asyncio.gather(*map(overview, rows))
    live = any(job.state not in jobs.ENDED for job, _ in newest)
    return render(
        "home.html", ctx.request, ctx.principal, datasets=datasets, jobs=newest, live=live
    )


def _overview(service: Service, name: str) -> dict[str, Any]:
    """A dataset's row, but for its name and place."""
    try:
        view = service.catalog.view(name)
        ref = view.ref("main")
        manifest = view.manifest(ref.digest)
    except DatasetMissing:
        return {"trouble": "", "digest": ""}
    return {"trouble": "", "digest": ref.digest, "ref": ref, "manifest": manifest}


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
    return render("login.html", ctx.request, wrong="", then=_local_path(then))


@router.post("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def login(ctx: Context, fields: FormDep) -> Response:
    """Begin a session."""
    return await _enter(ctx.request, ctx.service, fields.get("token", ""), fields.get("then", "/"))


@router.post("/ui/logout", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
async def logout(ctx: Context) -> Response:
    """End the caller's sessions and delete the cookie."""
    await run_in_threadpool(ctx.service.authority.sign_out, ctx.request.cookies.get(COOKIE, ""))
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
        session = await run_in_threadpool(service.authority.sign_in, token)
    except Problem as problem:
        _log.warning("refused a token from %s: %s", address_of(request), problem.message)
        wrong = problem.message
        return render(
            "login.html", request, status=problem.status, wrong=wrong, then=_local_path(then)
        )
    answer = RedirectResponse(_local_path(then), 303)
    answer.set_cookie(
        COOKIE, session, max_age=SESSION_SECONDS, httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


def _local_path(path: str) -> str:
    """A path of this service to redirect to; anything else becomes the first page."""
    fine = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if fine else "/"


_SHOWN: Final = 100


@router.get("/ui/jobs/{job_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", "jobs")
def job_page(ctx: Context, job_id: JobId) -> HTMLResponse:
    """One job; a script keeps the page as the job is, else it reloads itself."""
    row, dataset = owned_job(ctx, job_id)
    return render(
        "job.html", ctx.request, ctx.principal, job=row, dataset=dataset,
        broken=ctx.service.jobs.chains(job_id, "broken", 0, _SHOWN),
        notes=ctx.service.jobs.chains(job_id, "note", 0, _SHOWN),
        log=ctx.service.scheduler.log(row) if "jobs" in ctx.principal.scopes else None,
        live=row.state not in jobs.ENDED,
    )  # fmt: skip


@router.post("/ui/jobs", include_in_schema=False)
@scope("jobs", form=True)
def submit(ctx: Context, fields: FormDep) -> Response:
    """Queue a job."""
    values = {"ref": None} | {name: text for name, text in fields.items() if name != WORD}
    try:
        new = routes.NewJob.model_validate(values, strict=False)  # numbers come as text
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise bad_field(".".join(map(str, first["loc"])), str(first["msg"])) from None
    return RedirectResponse(f"/ui/jobs/{routes.submit_job(ctx, new, Response()).id}", 303)


@router.post("/ui/jobs/{job_id}/{deed}", include_in_schema=False)
@scope("jobs", form=True)
def cancel_or_retry(ctx: Context, job_id: JobId, deed: Literal["cancel", "retry"]) -> Response:
    """Ask a job to stop, or queue an ended one again."""
    (routes.cancel_job if deed == "cancel" else routes.retry_job)(ctx, job_id)
    return RedirectResponse(f"/ui/jobs/{job_id}", 303)

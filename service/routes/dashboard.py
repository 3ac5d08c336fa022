"""The dashboard: pages made on the server, readable without a script."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs, quote

import jinja2
from fastapi import Query, Request
from pydantic import model_validator
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed import __version__
from evofeed.errors import DatasetMissing, EvofeedError
from evofeed.service import charts, jobs
from evofeed.service.admission import refuse
from evofeed.service.auth import COOKIE, PUBLIC, SESSION_SECONDS, sign_in, sign_out
from evofeed.service.clock import iso
from evofeed.service.history import note_ref, ref_history
from evofeed.service.names import DatasetName
from evofeed.service.problems import Problem
from evofeed.service.routes.chains import RefChainQuery, page_of_chains
from evofeed.service.routes.jobs import JobId, dead_letters, owned_job
from evofeed.service.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service
from evofeed.service.tables import DatasetRow

router = make_router(tag="dashboard")
_LOOK_SECONDS: Final = 3.0  # a store may take for its row of the first page
_HERE: Final = Path(__file__).resolve().parent.parent
_CHAIN_COLUMNS: Final = (
    "chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date", "method"
)  # fmt: skip
_PAGES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if nbytes < 1024 or unit == "TiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError("the loop returns")


def _when(time: str) -> str:
    """An ISO time (UTC) as a person reads it, to the minute."""
    return f"{time[:16].replace('T', ' ')} UTC"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


_PAGES.filters |= {
    "size": _size,
    "short": lambda digest: digest[:12],
    "iso": iso,
    "when": _when,
    "count": _count,
}
_PAGES.globals |= {"version": __version__, "histogram": charts.histogram, "bars": charts.bars}


def render(template: str, status: int = 200, who: str = "", **values: Any) -> HTMLResponse:
    """A page, for somebody if they are known."""
    text = _PAGES.get_template(template).render(who=who, **values)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A refusal as a page, where a browser asked for one of ours; None elsewhere."""
    path = request.url.path
    if path != "/" and not path.startswith("/ui/"):
        return None
    if problem.status == 401 and path != "/ui/login":
        asked = path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/ui/login?then={quote(asked, safe='')}", 303)
    page = render("problem.html", problem.status, problem=problem)
    page.headers.update(problem.headers)
    return page


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
async def home(service: ServiceDep, principal: PrincipalDep) -> HTMLResponse:
    """Datasets and jobs; a store that does not answer is a word in its own row."""
    work, only = service.work, principal.datasets
    rows = await work.run(lambda: service.catalog.datasets(limit=200, only=only))
    jobs = await work.run(lambda: service.jobs.newest(only=only, limit=20))

    async def overview(row: DatasetRow) -> dict[str, Any]:
        place = {"name": row.name, "uri": row.uri if principal.sees_places else ""}
        try:
            look = partial(_overview, service, row.name)
            return place | await work.run(look, dataset=row.name, seconds=_LOOK_SECONDS)
        except (EvofeedError, OSError) as error:
            why = error.message if isinstance(error, EvofeedError) else "cannot be read"
            return place | {"trouble": why, "digest": ""}

    datasets = await asyncio.gather(*map(overview, rows))
    return render("home.html", datasets=datasets, jobs=jobs, who=principal.id)


class PageQuery(RefChainQuery):
    """As RefChainQuery, from a form: a field left empty is not asked for."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Any) -> Any:
        return {name: value for name, value in values.items() if value not in ("", [""])}


@router.get("/ui/datasets/{name}", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
def dataset_page(
    service: ServiceDep,
    principal: PrincipalDep,
    name: DatasetName,
    query: Annotated[PageQuery, Query()],
) -> HTMLResponse:
    """One dataset: its snapshots, what they hold, and a page of chains."""
    row, view = service.catalog.dataset(name), service.catalog.view(name)
    if not view.refs():
        return render("unpublished.html", dataset=row, who=principal.id)
    ref = note_ref(service.database, row.id, view, query.ref)
    query = query.model_copy(update={"limit": min(query.limit, 25), "columns": None})
    page = page_of_chains(service, name, query)
    snapshots = [(digest, at, view.manifest(digest)) for digest, at in view.digests()[:20]]
    return render(
        "dataset.html",
        who=principal.id,
        dataset=row,
        ref=ref,
        refs=view.refs(),
        snapshots=snapshots,
        moves=ref_history(service.database, row.id, query.ref, 10),
        manifest=view.manifest(ref.digest),
        statistics=service.catalog.statistics(name, ref.digest),
        page=page,
        columns=_CHAIN_COLUMNS,
        query=query,
        kept=query.model_dump(exclude={"cursor", "columns", "limit", "count"}, exclude_none=True),
    )


@router.get("/ui/jobs/{job_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
def job_page(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> HTMLResponse:
    """One job; the page reloads itself while the job runs."""
    row, dataset = owned_job(service, principal, job_id)
    letters = dead_letters(service, row, None, 0, 100)
    return render(
        "job.html",
        who=principal.id,
        job=row,
        dataset=dataset,
        letters=letters,
        live=row.state not in jobs.ENDED,
        places=principal.sees_places,
    )


@router.get("/ui/api", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
def api_page(request: Request) -> HTMLResponse:
    """Every route of the HTTP interface, without a script from elsewhere."""
    return render("api.html", paths=request.app.openapi()["paths"])


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
    return render("login.html", wrong="", then=_own(then))


@router.post("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC, repeatable=False)
async def login(request: Request, service: ServiceDep) -> Response:
    """Begin a session; its cookie only ever reads."""
    fields = parse_qs((await request.body()).decode(errors="replace"))
    token, then = (fields.get(name, [""])[0].strip() for name in ("token", "then"))
    return await _enter(request, service, token, then)


@router.post("/ui/logout", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC, repeatable=False)
async def logout(request: Request, service: ServiceDep) -> Response:
    """End the session."""
    await run_in_threadpool(sign_out, service.database, request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/ui/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


async def _enter(request: Request, service: Service, token: str, then: str) -> Response:
    try:
        session = await run_in_threadpool(sign_in, service.database, token)
    except Problem as problem:
        refused = await refuse(service, request, problem.message)
        return render("login.html", refused.status, wrong=refused.message, then=_own(then))
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


@router.get("/static/{file}", include_in_schema=False)
@scope(PUBLIC)
def static(file: str) -> Response:
    """The style sheet."""
    if file != "style.css":
        raise Problem(404, "not_found", "no such file", next="see /ui/api")
    headers = {"Cache-Control": "public, max-age=3600"}
    data = (_HERE / "static" / "style.css").read_bytes()
    return Response(data, media_type="text/css", headers=headers)


def _overview(service: Service, name: str) -> dict[str, Any]:
    """A dataset's row, but for its name and place."""
    try:
        view = service.catalog.view(name)
        ref = view.ref("main")
        manifest = view.manifest(ref.digest)
    except DatasetMissing:
        return {"trouble": "", "digest": ""}
    return {
        "trouble": "",
        "digest": ref.digest,
        "updated_at": ref.updated_at,
        "num_chains": manifest.num_chains,
        "nbytes": sum(shard.nbytes for shard in manifest.shards),
    }

"""The dashboard: pages made on the server, readable without a script."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qs

import jinja2
from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from evofeed import __version__
from evofeed.errors import DatasetMissing, EvofeedError
from evofeed.service import charts, jobs
from evofeed.service.auth import COOKIE, authenticate_text
from evofeed.service.clock import iso
from evofeed.service.names import DatasetName
from evofeed.service.problems import Problem
from evofeed.service.refs import note_ref, ref_history
from evofeed.service.routes.chains import RefChainQuery, page_of_chains
from evofeed.service.routes.jobs import JobId, dead_letters, owned_job
from evofeed.service.routing import PUBLIC, PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service

router = make_router(tag="dashboard")
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


def render(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page."""
    text = _PAGES.get_template(template).render(**values)
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})


def problem_page(request: Request, problem: Problem) -> Response | None:
    """A refusal as a page, where a browser asked for one of ours; None elsewhere."""
    path = request.url.path
    if path != "/" and not path.startswith("/ui/"):
        return None
    if problem.status == 401 and path != "/ui/login":
        return RedirectResponse("/ui/login", 303)
    return render("problem.html", problem.status, problem=problem)


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
def home(service: ServiceDep, principal: PrincipalDep) -> HTMLResponse:
    """Datasets and jobs."""
    rows = service.catalog.datasets(limit=200, only=principal.datasets)
    return render(
        "home.html",
        datasets=[_overview(service, row.name, row.uri) for row in rows],
        jobs=service.jobs.list(only=principal.datasets, limit=20),
    )


@router.get("/ui/datasets/{name}", response_class=HTMLResponse, include_in_schema=False)
@scope("read")
def dataset_page(
    service: ServiceDep, name: DatasetName, query: Annotated[RefChainQuery, Query()]
) -> HTMLResponse:
    """One dataset: its snapshots, what they hold, and a page of chains."""
    row, view = service.catalog.dataset(name), service.catalog.view(name)
    if not view.refs():
        return render("unpublished.html", dataset=row)
    ref = view.ref(query.ref)
    note_ref(service.database, row.id, ref)
    query = query.model_copy(update={"limit": min(query.limit, 25), "columns": None})
    page = page_of_chains(service, name, query)
    snapshots = [(digest, at, view.manifest(digest)) for digest, at in view.digests()[:20]]
    return render(
        "dataset.html",
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
    letters = dead_letters(service, row, dataset, 0, 100)
    return render(
        "job.html", job=row, dataset=dataset, letters=letters, live=row.state not in jobs.ENDED
    )


@router.get("/ui/api", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
def api_page(request: Request) -> HTMLResponse:
    """Every route of the HTTP interface, without a script from elsewhere."""
    return render("api.html", paths=request.app.openapi()["paths"])


@router.get("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC)
def login_page() -> HTMLResponse:
    """Where a browser hands in a token."""
    return render("login.html", wrong="")


@router.post("/ui/login", response_class=HTMLResponse, include_in_schema=False)
@scope(PUBLIC, repeatable=False)
async def login(request: Request, service: ServiceDep) -> Response:
    """Keep a token in a cookie that only ever reads."""
    fields = parse_qs((await request.body()).decode(errors="replace"))
    token = fields.get("token", [""])[0].strip()
    try:
        await run_in_threadpool(authenticate_text, service.database, token)
    except EvofeedError as error:
        return render("login.html", 401, wrong=error.message)
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, token, httponly=True, samesite="strict", secure=secure)
    return answer


@router.get("/static/{file}", include_in_schema=False)
@scope(PUBLIC)
def static(file: str) -> Response:
    """The style sheet."""
    if file != "style.css":
        raise Problem(404, "not_found", "no such file", next="see /ui/api")
    headers = {"Cache-Control": "public, max-age=3600"}
    data = (_HERE / "static" / "style.css").read_bytes()
    return Response(data, media_type="text/css", headers=headers)


def _overview(service: Service, name: str, uri: str) -> dict[str, Any]:
    """A dataset's row; a store that cannot be read is a word in it, not an error page."""
    try:
        view = service.catalog.view(name)
        ref = view.ref("main")
        manifest = view.manifest(ref.digest)
    except EvofeedError as error:
        trouble = "" if isinstance(error, DatasetMissing) else error.message
        return {"name": name, "uri": uri, "trouble": trouble, "digest": ""}
    return {
        "name": name,
        "uri": uri,
        "trouble": "",
        "digest": ref.digest,
        "updated_at": ref.updated_at,
        "num_chains": manifest.num_chains,
        "nbytes": sum(shard.nbytes for shard in manifest.shards),
    }

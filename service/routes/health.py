"""Is it alive, is it ready, what can it do."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from evofeed import __version__
from evofeed.base.errors import ServiceError
from evofeed.service.access.auth import PUBLIC, SCOPES
from evofeed.service.jobs.config import cores
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.snapshots import filters

router = make_router(tag="health")


@router.get("/healthz")
@scope(PUBLIC)
async def healthz() -> dict[str, str]:
    """The process answers; it waits for nothing else."""
    return {"status": "ok"}


@router.get("/readyz")
@scope(PUBLIC)
def readyz(ctx: Context) -> dict[str, str]:
    """The database answers and holds the newest tables."""
    why = "the database lacks the newest tables: run `evofeed serve --migrate`"
    try:
        if ctx.service.database.is_current():
            return {"status": "ready"}
    except ServiceError as error:
        why = error.message
    raise Problem(503, "not_ready", why, next="retry shortly", wait=2)


@router.get("/metrics", response_class=PlainTextResponse)
@scope("read", reads_bytes=True)
def metrics(ctx: Context) -> Response:
    """Counters in Prometheus' text format, over all datasets."""
    ctx.principal.require_all_datasets()
    ctx.service.metrics.datasets.set(ctx.service.catalog.count())
    for state, count in ctx.service.jobs.counts().items():
        ctx.service.metrics.jobs.labels(state).set(count)
    return Response(ctx.service.metrics.text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@router.get("/v1/config")
@scope(PUBLIC)
def config(ctx: Context) -> dict[str, Any]:
    """Version, limits and abilities, for a client to read first."""
    settings = ctx.service.settings
    return {
        "version": __version__,
        "auth": settings.auth_on,
        "scopes": list(SCOPES),
        "limits": {
            "page": 1000,
            "body_bytes": settings.max_body,
            "filter_terms": filters.MAX_NODES,
            "filter_values": filters.MAX_VALUES,
            "running_jobs": settings.max_jobs,
            "queued_jobs": settings.max_queued_jobs,
            "job_workers": settings.job_workers or cores(),
            "job_memory": settings.job_memory,
            "job_deadline": settings.job_deadline,
            "request_seconds": settings.request_seconds,
            "heavy_requests": settings.heavy_requests,
        },
        "filter_operators": filters.OPERATORS,
    }


@router.get("/openapi.json", include_in_schema=False)
@scope(PUBLIC)
def openapi(request: Request) -> dict[str, Any]:
    """Every route, as OpenAPI 3.1."""
    schema: dict[str, Any] = request.app.openapi()
    return schema

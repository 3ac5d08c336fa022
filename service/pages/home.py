"""The first page: datasets and jobs."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from starlette.responses import HTMLResponse

from evofeed.base.errors import DatasetMissing, EvofeedError
from evofeed.service.database.tables import DatasetRow
from evofeed.service.jobs import queue as jobs
from evofeed.service.pages.page import render
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.state import Service

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
    return {
        "trouble": "",
        "digest": ref.digest,
        "updated_at": ref.updated_at,
        "num_chains": manifest.num_chains,
        "nbytes": sum(shard.nbytes for shard in manifest.shards),
    }

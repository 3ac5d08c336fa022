"""Progress of a job as it comes: server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from evofeed.service.access.auth import Principal, is_alive
from evofeed.service.jobs import queue as jobs
from evofeed.service.problems import Problem
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.jobs import JobId, job_view, owned_job
from evofeed.service.state import Service

router = make_router("/v1/jobs", "jobs")
_QUIET_SECONDS = 10.0
_EVENT = {
    "type": "object",
    "description": "one event of the stream, whose `data` is JSON",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "description": "its number, from 1"},
        "event": {"type": "string", "enum": ["progress", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`progress` events with the job, then one `end` event with its state",
            "content": {"text/event-stream": {"schema": _EVENT}},
        }
    },
)
@scope("read", "jobs")
def watch_job(
    request: Request, service: ServiceDep, principal: PrincipalDep, job_id: JobId
) -> StreamingResponse:
    """Progress as server-sent events; a stream that has no `end` event was cut off."""
    owned_job(service, principal, job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _events(request, service, principal, job_id),
        headers=headers,
        media_type="text/event-stream",
    )


async def _events(
    request: Request, service: Service, principal: Principal, job_id: str
) -> AsyncIterator[str]:
    last, quiet, number = "", 0.0, 0
    while not service.stopping.is_set():
        try:
            row, dataset = await run_in_threadpool(service.jobs.get, job_id)
        except Problem:  # removed with its dataset
            yield f'id: {number + 1}\nevent: end\ndata: {{"state": "removed"}}\n\n'
            return
        view = job_view(row, dataset, principal).model_dump()
        text = json.dumps(view | {"updated_at": ""})  # it lives: no news
        if text != last:
            number += 1
            yield f"id: {number}\nevent: progress\ndata: {json.dumps(view)}\n\n"
            last, quiet = text, 0.0
        if row.state in jobs.ENDED:
            yield f"id: {number + 1}\nevent: end\ndata: {json.dumps({'state': row.state})}\n\n"
            return
        if quiet >= _QUIET_SECONDS:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(service.timings.job_events)
        quiet += service.timings.job_events
        if await request.is_disconnected():
            return
        if not await run_in_threadpool(is_alive, service.database, principal):
            return  # its token was revoked or has expired: cut off

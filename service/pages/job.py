"""One job, live: how far it is, what broke, what it left out, and its log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import HTMLResponse

from evofeed.service.jobs import queue as jobs
from evofeed.service.pages.page import render
from evofeed.service.requests.routing import PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.routes.jobs import JobId, job_log, owned_job

router = make_router("/ui/jobs", tag="pages")
_SHOWN = 100


@router.get("/{job_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", "jobs")
def job_page(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    job_id: JobId,
    attempt: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> HTMLResponse:
    """One job; a script keeps the page as the job is, else it reloads itself."""
    row, dataset = owned_job(service, principal, job_id)
    attempts = service.jobs.attempts(job_id)
    number = attempt or row.attempts
    shown = next((one for one in attempts if one.number == number), None)
    broken = service.jobs.chains(job_id, number, "broken", 0, _SHOWN)
    notes = service.jobs.chains(job_id, number, "note", 0, _SHOWN)
    return render(
        "job.html",
        request,
        principal,
        job=row,
        dataset=dataset,
        attempts=attempts,
        number=number,
        attempt=shown,
        broken=broken,
        notes=notes,
        log=job_log(service, job_id, number) if "jobs" in principal.scopes else None,
        live=row.state not in jobs.ENDED,
    )

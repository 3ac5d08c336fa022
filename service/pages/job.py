"""One job, live: how far it is, what broke, what it left out, its log; and the forms for jobs."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import ValidationError
from starlette.responses import HTMLResponse, Response

from evofeed.service.jobs.queue import ENDED
from evofeed.service.pages.page import render, see_other
from evofeed.service.requests.forms import WORD, FormDep, bad_field
from evofeed.service.requests.routing import Context, make_router, scope
from evofeed.service.routes import jobs as routes
from evofeed.service.routes.jobs import Attempt, JobId, job_log, owned_job

router = make_router("/ui/jobs", tag="pages")
_SHOWN: Final = 100


@router.get("/{job_id}", response_class=HTMLResponse, include_in_schema=False)
@scope("read", "jobs")
def job_page(ctx: Context, job_id: JobId, attempt: Attempt = None) -> HTMLResponse:
    """One job; a script keeps the page as the job is, else it reloads itself."""
    row, dataset = owned_job(ctx, job_id)
    jobs, number = ctx.service.jobs, attempt or row.attempts
    attempts = jobs.attempts(job_id)
    return render(
        "job.html", ctx.request, ctx.principal, job=row, dataset=dataset, attempts=attempts,
        number=number, attempt=next((one for one in attempts if one.number == number), None),
        broken=jobs.chains(job_id, number, "broken", 0, _SHOWN),
        notes=jobs.chains(job_id, number, "note", 0, _SHOWN),
        log=job_log(ctx.service, job_id, number) if "jobs" in ctx.principal.scopes else None,
        live=row.state not in ENDED,
    )  # fmt: skip


@router.post("", include_in_schema=False)
@scope("jobs", form=True)
def submit(ctx: Context, fields: FormDep) -> Response:
    """Queue a job."""
    values = {"ref": None} | {name: text for name, text in fields.items() if name != WORD}
    try:
        new = routes.NewJob.model_validate(values, strict=False)  # numbers come as text
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise bad_field(".".join(map(str, first["loc"])), str(first["msg"])) from None
    return see_other(f"/ui/jobs/{routes.submit_job(ctx, new, Response()).id}")


@router.post("/{job_id}/{deed}", include_in_schema=False)
@scope("jobs", form=True)
def cancel_or_retry(ctx: Context, job_id: JobId, deed: Literal["cancel", "retry"]) -> Response:
    """Ask a job to stop, or queue an ended one again."""
    (routes.cancel_job if deed == "cancel" else routes.retry_job)(ctx, job_id)
    return see_other(f"/ui/jobs/{job_id}")

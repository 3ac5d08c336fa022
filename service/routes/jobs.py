"""Jobs: submit, watch, cancel, retry; what they could not do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from evofeed.service import jobs
from evofeed.service.auth import Principal
from evofeed.service.clock import iso
from evofeed.service.job_config import Preset, checked_config, checked_crop
from evofeed.service.names import NewName
from evofeed.service.places import Uri, require_root
from evofeed.service.problems import Problem
from evofeed.service.routing import Limit, PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service
from evofeed.service.tables import DatasetRow, JobRow

if TYPE_CHECKING:
    from evofeed.featurize.job import Ledger

router = make_router("/v1/jobs", "jobs")
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="job id")]
State = Literal["queued", "running", "cancelling", "cancelled", "succeeded", "failed"]
_POLL_SECONDS = 0.5
_QUIET_SECONDS = 10.0
_LOG_BYTES = 65_536


class NewJob(BaseModel):
    """Raw files to featurise into a registered dataset."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"dataset": "pdb", "input_uri": "/data/raw", "crop": {"max_msa_rows": 8192}}
            ]
        },
    )

    dataset: NewName
    input_uri: Uri = Field(description="folder or file of raw data, as the service sees it")
    ref: NewName = "main"
    preset: Preset = Field("safe", description="`openfold`: bit for bit what OpenFold makes")
    config: dict[str, Any] = Field({}, description="fields of FeaturizeConfig to change")
    crop: dict[str, Any] | None = Field(None, description="fields of CropConfig; null: no crop")
    executor: Literal["auto", "ray", "local"] = Field(
        "auto", description="`auto`: Ray if the service has a cluster, else processes"
    )
    workers: int = Field(0, ge=0, le=4096, description="0: one per core")
    deadline: float = Field(600.0, gt=0, le=86_400, description="seconds for one chain")
    memory: int = Field(8 << 30, ge=1 << 20, le=1 << 42, description="bytes for one chain")
    max_broken: float = Field(
        0.05, ge=0, le=1, description="share above which nothing is published"
    )

    def options(self) -> dict[str, Any]:
        """What of it the job's driver takes."""
        names = ("executor", "workers", "deadline", "memory", "max_broken")
        return {name: getattr(self, name) for name in names}


class JobView(BaseModel):
    """A job as it stands."""

    id: str
    dataset: str
    input_uri: str
    ref: str
    state: State
    attempts: int
    progress: dict[str, Any] = Field(
        description="num_chains, good, broken, share, seconds_left, ..."
    )
    result: dict[str, Any] = Field(description="snapshot, counts and seconds, once it has ended")
    error: str
    created_at: str
    updated_at: str
    principal: str


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobView]
    next: float | None = Field(description="`before` of the next page; null at the end")


class DeadLetters(BaseModel):
    """Chains that are in no snapshot, and why."""

    total: int
    chains: list[dict[str, Any]]


@router.post("", status_code=202)
@scope("jobs")
def submit_job(
    service: ServiceDep, principal: PrincipalDep, new: NewJob, response: Response
) -> JobView:
    """Queue a job; it starts as soon as a place is free."""
    principal.require_dataset(new.dataset)
    require_root(
        service.settings, service.settings.input_roots, new.input_uri, "EVOFEED_INPUT_ROOTS"
    )
    if not service.settings.max_jobs:
        raise Problem(403, "no_jobs", "this service runs no jobs", next="set EVOFEED_MAX_JOBS")
    dataset = service.catalog.dataset(new.dataset)
    spec = {
        "input_uri": new.input_uri,
        "ref": new.ref,
        "config": checked_config(new.preset, new.config),
        "crop": checked_crop(new.crop),
        "options": new.options(),
    }
    row = service.jobs.submit(dataset, spec, principal.id, principal.quotas)
    service.scheduler.wake()
    response.headers["Location"] = f"/v1/jobs/{row.id}"
    return _view(row, dataset)


@router.get("")
@scope("read")
def list_jobs(
    service: ServiceDep,
    principal: PrincipalDep,
    state: Annotated[State | None, Query(description="only jobs in it")] = None,
    before: Annotated[
        float | None,
        Query(gt=0, lt=1e12, allow_inf_nan=False, description="`next` of the page before"),
    ] = None,
    limit: Limit = 100,
) -> JobPage:
    """Jobs of the datasets this token may see."""
    found = service.jobs.list(state=state, only=principal.datasets, before=before, limit=limit + 1)
    more = found[limit - 1][0].created_at if len(found) > limit else None
    return JobPage(jobs=[_view(*pair) for pair in found[:limit]], next=more)


@router.get("/{job_id}")
@scope("read")
def get_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """One job."""
    return _view(*owned_job(service, principal, job_id))


@router.post("/{job_id}/cancel", status_code=202)
@scope("jobs")
def cancel_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """Ask a job to stop; units that are done stay done."""
    owned_job(service, principal, job_id)
    service.jobs.cancel(job_id, principal.id)
    return _view(*service.jobs.get(job_id))


@router.post("/{job_id}/retry", status_code=202)
@scope("jobs")
def retry_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """Queue an ended job again; chains that failed get another chance, the rest is kept."""
    row, dataset = owned_job(service, principal, job_id)
    # The ledger first: once it is queued, a child may drive the job and hold the ledger.
    if row.state in jobs.ENDED and (ledger_job := row.result.get("ledger_job")):
        with _ledger(service, dataset) as ledger:
            ledger.retry(ledger_job)
    service.jobs.requeue(job_id, principal.id, principal.quotas)
    service.scheduler.wake()
    return _view(*service.jobs.get(job_id))


@router.get("/{job_id}/dead-letters")
@scope("read")
def get_dead_letters(
    service: ServiceDep,
    principal: PrincipalDep,
    job_id: JobId,
    offset: Annotated[int, Query(ge=0, le=10**9, description="chains to pass over")] = 0,
    limit: Limit = 100,
) -> DeadLetters:
    """Chains the job could not do, each with its reason."""
    row, dataset = owned_job(service, principal, job_id)
    return dead_letters(service, row, dataset, offset, limit)


@router.get("/{job_id}/log", response_class=PlainTextResponse)
@scope("jobs")
def get_log(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> PlainTextResponse:
    """The last 64 KiB its process wrote."""
    owned_job(service, principal, job_id)
    try:
        with service.scheduler.log_path(job_id).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
            return PlainTextResponse(file.read().decode(errors="replace"))
    except FileNotFoundError:
        return PlainTextResponse("")


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
@scope("read")
def watch_job(
    request: Request, service: ServiceDep, principal: PrincipalDep, job_id: JobId
) -> StreamingResponse:
    """Progress as server-sent events; a stream that has no `end` event was cut off."""
    owned_job(service, principal, job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(
        _events(request, service, job_id), headers=headers, media_type="text/event-stream"
    )


async def _events(request: Request, service: Service, job_id: str) -> AsyncIterator[str]:
    last, quiet = "", 0.0
    while not service.stopping.is_set():
        try:
            row, dataset = await run_in_threadpool(service.jobs.get, job_id)
        except Problem:  # removed with its dataset
            yield 'event: end\ndata: {"state": "removed"}\n\n'
            return
        text = json.dumps(_view(row, dataset).model_dump() | {"updated_at": ""})
        if text != last:
            yield f"event: progress\ndata: {text}\n\n"
            last, quiet = text, 0.0
        if row.state in jobs.ENDED:
            yield f"event: end\ndata: {json.dumps({'state': row.state})}\n\n"
            return
        if quiet >= _QUIET_SECONDS:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(_POLL_SECONDS)
        quiet += _POLL_SECONDS
        if await request.is_disconnected():
            return


def dead_letters(
    service: Service, row: JobRow, dataset: DatasetRow, offset: int, limit: int
) -> DeadLetters:
    """A page of what a job could not do, from its ledger."""
    if not (ledger_job := row.result.get("ledger_job")):
        return DeadLetters(total=0, chains=[])
    with _ledger(service, dataset) as ledger:
        dead = ledger.chains(ledger_job)
    names = ("chain_id", "type", "message", "path", "line", "strikes")
    page = [{name: chain[name] for name in names} for chain in dead[offset : offset + limit]]
    return DeadLetters(total=len(dead), chains=page)


@contextmanager
def _ledger(service: Service, dataset: DatasetRow) -> Iterator[Ledger]:
    """The ledger of a dataset's jobs, open for one request."""
    # Only a service that runs jobs needs the featurize extra installed.
    from evofeed.featurize.job import Ledger, ledger_url

    own = "" if service.database.is_sqlite else service.settings.url
    with closing(Ledger(ledger_url(own, dataset.uri))) as ledger:
        yield ledger


def owned_job(service: Service, principal: Principal, job_id: str) -> tuple[JobRow, DatasetRow]:
    """A job this principal may see, and its dataset.

    Raises:
        Problem: 404; 403, it is for a dataset outside the token's list.
    """
    row, dataset = service.jobs.get(job_id)
    principal.require_dataset(dataset.name)
    return row, dataset


def _view(row: JobRow, dataset: DatasetRow) -> JobView:
    return JobView(
        id=row.id,
        dataset=dataset.name,
        input_uri=row.spec["input_uri"],
        ref=row.spec["ref"],
        state=row.state,  # type: ignore[arg-type]
        attempts=row.attempts,
        progress=row.progress,
        result=row.result,
        error=row.error,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        principal=row.principal,
    )

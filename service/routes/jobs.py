"""Jobs: submit, list, watch, cancel, retry; their logs, and what they could not do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from evofeed.service.access.auth import Principal, is_alive
from evofeed.service.access.places import Uri, require_root
from evofeed.service.database.tables import DatasetRow, JobRow
from evofeed.service.jobs import queue
from evofeed.service.jobs.config import (
    Preset,
    checked_config,
    checked_crop,
    cores,
    require_within,
)
from evofeed.service.names import Message, NewName
from evofeed.service.problems import Problem
from evofeed.service.refs.policies import policy_of, require_movable
from evofeed.service.requests.body import Body, Instant, view_of
from evofeed.service.requests.routing import Context, Limit, make_router, scope
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
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`progress` events with the job, then one `end` event with its state",
        "content": {"text/event-stream": {"schema": _EVENT}},
    }
}


def _job_id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{16}", text):
        raise ValueError(f"a job's id has 16 digits 0-9a-f, not {text[:40]!r}")
    return text


JobId = Annotated[str, AfterValidator(_job_id), Path(description="job id, 16 digits 0-9a-f")]
JobKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[A-Za-z0-9._:-]{1,128}$",
        description="submitted twice with the same key, there is one job",
    ),
]
State = Literal["queued", "running", "cancelling", "cancelled", "succeeded", "failed"]
Attempt = Annotated[
    int | None, Query(ge=1, lt=2**31, description="of this attempt; the last, if not given")
]
Before = Annotated[
    float | None,
    Query(gt=0, lt=1e12, allow_inf_nan=False, description="`next` of the page before"),
]


class NewJob(
    Body,
    json_schema_extra={
        "examples": [{"dataset": "pdb", "input_uri": "/data/raw", "crop": {"max_msa_rows": 8192}}]
    },
):
    """Raw files to featurize into a registered dataset."""

    dataset: NewName
    input_uri: Uri = Field(description="folder or file of raw data, as the service sees it")
    ref: NewName | None = Field(
        "main", description="moved to the snapshot (needs `publish`); null: no ref is moved"
    )
    message: Message = Field("", description="why, for the ref's history")
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
    replace: bool = Field(
        False, description="chains that the ref has and the input has not may go with the move"
    )

    def options(self) -> dict[str, Any]:
        """What of it the job's driver takes."""
        names = ("executor", "workers", "deadline", "memory", "max_broken")
        return {name: getattr(self, name) for name in names} | {"replace_ref": self.replace}


class JobView(BaseModel):
    """A job as it is now."""

    id: str
    dataset: str
    input_uri: str | None = Field(description="null for tokens that only read")
    ref: str | None
    message: str
    state: State
    attempts: int
    progress: dict[str, Any] = Field(
        description="num_chains, good, broken, share, seconds_left, ..."
    )
    result: dict[str, Any] = Field(description="snapshot, counts and seconds, once it has ended")
    error: str
    created_at: Instant
    updated_at: Instant
    principal: str


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobView]
    next: float | None = Field(description="`before` of the next page; null at the end")


class AttemptView(BaseModel):
    """One run of a job."""

    number: int
    state: Literal["running", "interrupted", "died", "cancelled", "succeeded", "failed"]
    started_at: Instant
    ended_at: Instant | None
    progress: dict[str, Any]
    result: dict[str, Any]
    error: str
    principal: str = Field(description="who submitted or retried it")


class AttemptList(BaseModel):
    """The runs of a job, newest first."""

    attempts: list[AttemptView]


class ChainsQuery(BaseModel, extra="forbid"):
    """Which chains of a job."""

    attempt: int | None = Field(None, ge=1, lt=2**31, description="the last, if not given")
    offset: int = Field(0, ge=0, le=10**9, description="entries to pass over")
    limit: int = Field(100, ge=1, le=1000, description="rows of a page, at most")


class ChainMessage(BaseModel):
    """What an attempt says of a chain."""

    chain_id: str
    type: str
    message: str
    path: str | None
    line: int | None


class ChainMessages(BaseModel):
    """What an attempt says of chains: while it runs, so far."""

    attempt: int
    total: int
    chains: list[ChainMessage]


@router.post("", status_code=202)
@scope("jobs")
def submit_job(ctx: Context, new: NewJob, response: Response, key: JobKey = None) -> JobView:
    """Queue a job; it starts as soon as a place is free."""
    ctx.principal.require_dataset(new.dataset)
    settings = ctx.service.settings
    if not settings.max_jobs:
        raise Problem(403, "no_jobs", "this service runs no jobs", next="set EVOFEED_MAX_JOBS")
    dataset = ctx.service.catalog.dataset(new.dataset)
    _require_rights(ctx, dataset, new.input_uri, new.ref)
    require_within("workers", new.workers, settings.job_workers or cores())
    require_within("memory", new.memory, settings.job_memory)
    require_within("deadline", new.deadline, settings.job_deadline)
    spec = {
        "input_uri": new.input_uri,
        "ref": new.ref,
        "config": checked_config(new.preset, new.config, settings.job_caps),
        "crop": checked_crop(new.crop),
        "options": new.options() | {"workers": new.workers or settings.job_workers},
    }
    row = ctx.service.jobs.submit(dataset, spec, ctx.principal.id, new.message, key)
    ctx.service.scheduler.wake()
    response.headers["Location"] = f"/v1/jobs/{row.id}"
    return job_view(row, dataset, ctx.principal)


@router.get("")
@scope("read", "jobs")
def list_jobs(
    ctx: Context,
    state: Annotated[State | None, Query(description="only jobs in it")] = None,
    before: Before = None,
    limit: Limit = 100,
) -> JobPage:
    """Jobs of the datasets this token may see."""
    only = ctx.principal.datasets
    found = ctx.service.jobs.newest(state=state, only=only, before=before, limit=limit + 1)
    more = found[limit - 1][0].created_at if len(found) > limit else None
    return JobPage(jobs=[job_view(*pair, ctx.principal) for pair in found[:limit]], next=more)


@router.get("/{job_id}")
@scope("read", "jobs")
def get_job(ctx: Context, job_id: JobId) -> JobView:
    """One job."""
    return job_view(*owned_job(ctx, job_id), ctx.principal)


@router.post("/{job_id}/cancel", status_code=202)
@scope("jobs")
def cancel_job(ctx: Context, job_id: JobId) -> JobView:
    """Ask a job to stop; units that are done stay done."""
    owned_job(ctx, job_id)
    ctx.service.jobs.cancel(job_id, ctx.principal.id)
    return get_job(ctx, job_id)


@router.post("/{job_id}/retry", status_code=202)
@scope("jobs")
def retry_job(ctx: Context, job_id: JobId) -> JobView:
    """Queue an ended job again; chains that failed get another chance, the rest is kept."""
    row, dataset = owned_job(ctx, job_id)
    _require_rights(ctx, dataset, row.spec["input_uri"], row.spec["ref"])
    ctx.service.jobs.requeue(job_id, ctx.principal.id)
    ctx.service.scheduler.wake()
    return get_job(ctx, job_id)


@router.get("/{job_id}/attempts")
@scope("read", "jobs")
def list_attempts(ctx: Context, job_id: JobId) -> AttemptList:
    """The runs of a job: what each made, how it ended and how long it took."""
    owned_job(ctx, job_id)
    rows = ctx.service.jobs.attempts(job_id)
    return AttemptList(attempts=[view_of(AttemptView, row) for row in rows])


@router.get("/{job_id}/dead-letters")
@scope("read", "jobs")
def get_dead_letters(
    ctx: Context, job_id: JobId, query: Annotated[ChainsQuery, Query()]
) -> ChainMessages:
    """Chains the job could not do, each with its reason; inputs that are no chain too."""
    return _chains(ctx, job_id, "broken", query)


@router.get("/{job_id}/notes")
@scope("read", "jobs")
def get_notes(ctx: Context, job_id: JobId, query: Annotated[ChainsQuery, Query()]) -> ChainMessages:
    """What was left out of good chains, such as templates released too late."""
    return _chains(ctx, job_id, "note", query)


@router.get("/{job_id}/log", response_class=PlainTextResponse)
@scope("jobs")
def get_log(ctx: Context, job_id: JobId, attempt: Attempt = None) -> PlainTextResponse:
    """The last 64 KiB the process of an attempt wrote."""
    row, _ = owned_job(ctx, job_id)
    return PlainTextResponse(job_log(ctx.service, job_id, attempt or row.attempts))


@router.get("/{job_id}/events", response_class=StreamingResponse, responses=_EVENTS)
@scope("read", "jobs")
def watch_job(ctx: Context, job_id: JobId) -> StreamingResponse:
    """Progress as server-sent events; a stream that has no `end` event was cut off."""
    owned_job(ctx, job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(ctx, job_id), 200, headers, "text/event-stream")


async def _events(ctx: Context, job_id: str) -> AsyncIterator[str]:
    service, last, quiet, number = ctx.service, "", 0.0, 0
    while not service.stopping.is_set():
        try:
            row, dataset = await run_in_threadpool(service.jobs.get, job_id)
        except Problem:  # removed with its dataset
            yield f'id: {number + 1}\nevent: end\ndata: {{"state": "removed"}}\n\n'
            return
        view = job_view(row, dataset, ctx.principal).model_dump()
        text = json.dumps(view | {"updated_at": ""})  # it lives: no news
        if text != last:
            number += 1
            yield f"id: {number}\nevent: progress\ndata: {json.dumps(view)}\n\n"
            last, quiet = text, 0.0
        if row.state in queue.ENDED:
            yield f"id: {number + 1}\nevent: end\ndata: {json.dumps({'state': row.state})}\n\n"
            return
        if quiet >= _QUIET_SECONDS:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(service.timings.job_events)
        quiet += service.timings.job_events
        if await ctx.request.is_disconnected():
            return
        if not await run_in_threadpool(is_alive, service.database, ctx.principal):
            return  # its token was revoked or has expired: cut off


def _require_rights(ctx: Context, dataset: DatasetRow, input_uri: str, ref: str | None) -> None:
    """What `submit` and `retry` ask of whoever sends them."""
    require_root(ctx.service.settings, ctx.principal, input_uri, "EVOFEED_INPUT_ROOTS")
    if ref is not None:
        require_movable(policy_of(ctx.service.database, dataset.id, ref), ref, ctx.principal)


def _chains(ctx: Context, job_id: str, kind: str, query: ChainsQuery) -> ChainMessages:
    row, _ = owned_job(ctx, job_id)
    number = query.attempt or row.attempts
    total, chains = ctx.service.jobs.chains(job_id, number, kind, query.offset, query.limit)
    messages = [view_of(ChainMessage, chain) for chain in chains]
    return ChainMessages(attempt=number, total=total, chains=messages)


def job_log(service: Service, job_id: str, attempt: int) -> str:
    """The end of what the process of an attempt wrote."""
    text = service.scheduler.log(job_id, attempt)
    if text is None:
        kept = {one.number: one.log for one in service.jobs.attempts(job_id)}
        text = kept.get(attempt, "")
    return text


def owned_job(ctx: Context, job_id: str) -> tuple[JobRow, DatasetRow]:
    """A job this principal may see, and its dataset.

    Raises:
        Problem: 404; 403, it is for a dataset outside the token's list.
    """
    row, dataset = ctx.service.jobs.get(job_id)
    ctx.principal.require_dataset(dataset.name)
    return row, dataset


def job_view(row: JobRow, dataset: DatasetRow, principal: Principal) -> JobView:
    """A job as this principal may see it."""
    input_uri = row.spec["input_uri"] if principal.sees_places else None
    return view_of(JobView, row, dataset=dataset.name, input_uri=input_uri, ref=row.spec["ref"])

"""Jobs: submit, list, watch, cancel, retry; their logs, and what they could not do."""

from __future__ import annotations

import asyncio
import dataclasses
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
from evofeed.service.jobs.config import Preset, checked_config, checked_crop, cores, require_within
from evofeed.service.names import Body, Message, NewName, view_of
from evofeed.service.problems import Problem
from evofeed.service.refs import require_movable
from evofeed.service.requests.routing import Context, Limit, make_router, scope
from evofeed.service.views import BrokenChain, Job, State

router = make_router("/v1/jobs", "jobs")
Recipe = Literal["", "default", "af2", "af2-multimer", "openproteinset", "af3", "colabfold"]
_QUIET_SECONDS = 10.0
_LOOK_SECONDS = 0.5  # between two looks at a job whose events are streamed
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`progress` events with the job, then one `end` event with its state",
        "content": {"text/event-stream": {}},
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
Offset = Annotated[int, Query(ge=0, le=10**9, description="entries to pass over")]
Before = Annotated[
    float | None, Query(gt=0, lt=1e12, allow_inf_nan=False, description="`next` of the page before")
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
    recipe: Recipe = Field("", description="of a search that comes first: `input_uri` is FASTA")
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


class ChainMessages(BaseModel):
    """A job's messages about chains; while it runs, those so far."""

    total: int
    chains: list[BrokenChain]


class JobPage(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]
    next: float | None = Field(description="`before` of the next page; null at the end")


@router.post("", status_code=202)
@scope("jobs")
def submit_job(ctx: Context, new: NewJob, response: Response, key: JobKey = None) -> Job:
    """Queue a job; it starts as soon as a place is free."""
    ctx.principal.require_dataset(new.dataset)
    settings = ctx.service.settings
    dataset = ctx.service.catalog.dataset(new.dataset)
    options = new.model_dump(include={"executor", "workers", "deadline", "memory", "max_broken"})
    _require_allowed(ctx, dataset.name, new.input_uri, new.ref, options)
    options |= {"workers": new.workers or settings.job_workers, "replace_ref": new.replace}
    crop = checked_crop(new.crop)
    spec = {
        "input_uri": new.input_uri,
        "ref": new.ref,
        "config": checked_config(new.preset, new.config, settings.job_caps),
        "crop": None if crop is None else dataclasses.asdict(crop),
        "recipe": new.recipe,
        "options": options,
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
    jobs = ctx.service.jobs.newest(state=state, only=only, before=before, limit=limit + 1)
    more = jobs[limit - 1][0].created_at if len(jobs) > limit else None
    return JobPage(jobs=[job_view(*pair, ctx.principal) for pair in jobs[:limit]], next=more)


@router.get("/{job_id}")
@scope("read", "jobs")
def get_job(ctx: Context, job_id: JobId) -> Job:
    """One job."""
    return job_view(*owned_job(ctx, job_id), ctx.principal)


@router.post("/{job_id}/cancel", status_code=202)
@scope("jobs")
def cancel_job(ctx: Context, job_id: JobId) -> Job:
    """Ask a job to stop; units that are done stay done."""
    owned_job(ctx, job_id)
    ctx.service.jobs.cancel(job_id, ctx.principal.id)
    return get_job(ctx, job_id)


@router.post("/{job_id}/retry", status_code=202)
@scope("jobs")
def retry_job(ctx: Context, job_id: JobId) -> Job:
    """Queue an ended job again; chains that failed get another chance, the rest is kept."""
    row, dataset = owned_job(ctx, job_id)
    _require_allowed(ctx, dataset.name, row.spec["input_uri"], row.spec["ref"], row.spec["options"])
    ctx.service.jobs.requeue(job_id, ctx.principal.id)
    ctx.service.scheduler.wake()
    return get_job(ctx, job_id)


@router.get("/{job_id}/dead-letters", name="get_dead_letters")
@router.get("/{job_id}/notes", name="get_notes")
@scope("read", "jobs")
def get_messages(
    ctx: Context, job_id: JobId, offset: Offset = 0, limit: Limit = 100
) -> ChainMessages:
    """Chains that failed, each with its reason; also inputs that are not chains.

    `notes`: what was left out of good chains, such as templates released too late.
    """
    owned_job(ctx, job_id)
    kind = "note" if ctx.request.url.path.endswith("/notes") else "broken"
    total, chains = ctx.service.jobs.chains(job_id, kind, offset, limit)
    return ChainMessages(total=total, chains=[view_of(BrokenChain, chain) for chain in chains])


@router.get("/{job_id}/log", response_class=PlainTextResponse)
@scope("jobs")
def get_log(ctx: Context, job_id: JobId) -> PlainTextResponse:
    """The last 64 KiB the job's processes wrote."""
    return PlainTextResponse(ctx.service.scheduler.log(owned_job(ctx, job_id)[0]))


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
        view = dataclasses.asdict(job_view(row, dataset, ctx.principal))
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
        await asyncio.sleep(_LOOK_SECONDS)
        quiet += _LOOK_SECONDS
        if await ctx.request.is_disconnected():
            return
        if not await run_in_threadpool(is_alive, service.database, ctx.principal):
            return  # its token was revoked or has expired: cut off


def _require_allowed(
    ctx: Context, dataset: str, input_uri: str, ref: str | None, options: dict[str, Any]
) -> None:
    """Check the caller's rights, and that the job can run now, for `submit` and `retry`."""
    settings = ctx.service.settings
    if not settings.max_jobs:
        raise Problem(403, "no_jobs", "this service runs no jobs", next="set EVOFEED_MAX_JOBS")
    require_root(settings, ctx.principal, input_uri, "EVOFEED_INPUT_ROOTS")
    if ref is not None:
        require_movable(ctx.service.refs.policy(dataset, ref), ref, ctx.principal)
    require_within("workers", options["workers"], settings.job_workers or cores())
    require_within("memory", options["memory"], settings.job_memory)
    require_within("deadline", options["deadline"], settings.job_deadline)


def owned_job(ctx: Context, job_id: str) -> tuple[JobRow, DatasetRow]:
    """A job this principal may see, and its dataset."""
    return ctx.service.jobs.get(job_id, ctx.principal.datasets)


def job_view(row: JobRow, dataset: DatasetRow, principal: Principal) -> Job:
    """A job as this principal may see it."""
    input_uri = row.spec["input_uri"] if principal.sees_places else None
    return view_of(Job, row, dataset=dataset.name, input_uri=input_uri, ref=row.spec["ref"])

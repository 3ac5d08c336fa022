"""Jobs: submit, watch, cancel, retry; what they could not do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse, Response

from evofeed.service.access.auth import Principal
from evofeed.service.access.places import Uri, require_root
from evofeed.service.database.tables import DatasetRow, JobRow
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
from evofeed.service.requests.routing import Limit, PrincipalDep, ServiceDep, make_router, scope
from evofeed.service.state import Service

router = make_router("/v1/jobs", "jobs")
Attempt = Annotated[
    int | None, Query(ge=1, lt=2**31, description="of this attempt; the last, if not given")
]
Offset = Annotated[int, Query(ge=0, le=10**9, description="entries to pass over")]
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$", description="job id")]
State = Literal["queued", "running", "cancelling", "cancelled", "succeeded", "failed"]


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

    def options(self) -> dict[str, Any]:
        """What of it the job's driver takes."""
        names = ("executor", "workers", "deadline", "memory", "max_broken")
        return {name: getattr(self, name) for name in names}


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


class ChainWord(BaseModel):
    """What there is to say of a chain."""

    chain_id: str
    type: str
    message: str
    path: str | None
    line: int | None


class DeadLetters(BaseModel):
    """Chains that are in no snapshot, and why: while the job runs, those found so far."""

    attempt: int
    total: int
    chains: list[ChainWord]


class Notes(BaseModel):
    """What was left out of good chains, such as templates released too late."""

    attempt: int
    total: int
    notes: list[ChainWord]


@router.post("", status_code=202)
@scope("jobs")
def submit_job(
    service: ServiceDep, principal: PrincipalDep, new: NewJob, response: Response
) -> JobView:
    """Queue a job; it starts as soon as a place is free."""
    principal.require_dataset(new.dataset)
    settings = service.settings
    require_root(settings, principal, new.input_uri, "EVOFEED_INPUT_ROOTS")
    if not settings.max_jobs:
        raise Problem(403, "no_jobs", "this service runs no jobs", next="set EVOFEED_MAX_JOBS")
    dataset = service.catalog.dataset(new.dataset)
    if new.ref is not None:
        policy = policy_of(service.database, dataset.id, new.ref)
        require_movable(policy, new.ref, principal)
    for name, value, limit in (
        ("workers", new.workers, settings.job_workers or cores()),
        ("memory", new.memory, settings.job_memory),
        ("deadline", new.deadline, settings.job_deadline),
    ):
        require_within(name, value, limit)
    spec = {
        "input_uri": new.input_uri,
        "ref": new.ref,
        "config": checked_config(new.preset, new.config, settings.job_caps),
        "crop": checked_crop(new.crop),
        "options": new.options() | {"workers": new.workers or settings.job_workers},
    }
    row = service.jobs.submit(dataset, spec, principal.id, new.message)
    service.scheduler.wake()
    response.headers["Location"] = f"/v1/jobs/{row.id}"
    return job_view(row, dataset, principal)


@router.get("")
@scope("read", "jobs")
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
    only = principal.datasets
    found = service.jobs.newest(state=state, only=only, before=before, limit=limit + 1)
    more = found[limit - 1][0].created_at if len(found) > limit else None
    return JobPage(jobs=[job_view(*pair, principal) for pair in found[:limit]], next=more)


@router.get("/{job_id}")
@scope("read", "jobs")
def get_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """One job."""
    return job_view(*owned_job(service, principal, job_id), principal)


@router.post("/{job_id}/cancel", status_code=202)
@scope("jobs")
def cancel_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """Ask a job to stop; units that are done stay done."""
    owned_job(service, principal, job_id)
    service.jobs.cancel(job_id, principal.id)
    return job_view(*service.jobs.get(job_id), principal)


@router.post("/{job_id}/retry", status_code=202)
@scope("jobs")
def retry_job(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> JobView:
    """Queue an ended job again; chains that failed get another chance, the rest is kept."""
    row, dataset = owned_job(service, principal, job_id)
    if row.spec["ref"] is not None:
        policy = policy_of(service.database, dataset.id, row.spec["ref"])
        require_movable(policy, row.spec["ref"], principal)
    service.jobs.requeue(job_id, principal.id)
    service.scheduler.wake()
    return job_view(*service.jobs.get(job_id), principal)


@router.get("/{job_id}/attempts")
@scope("read", "jobs")
def list_attempts(service: ServiceDep, principal: PrincipalDep, job_id: JobId) -> AttemptList:
    """The runs of a job: what each made, how it ended and how long it took."""
    owned_job(service, principal, job_id)
    rows = service.jobs.attempts(job_id)
    return AttemptList(attempts=[view_of(AttemptView, row) for row in rows])


@router.get("/{job_id}/dead-letters")
@scope("read", "jobs")
def get_dead_letters(
    service: ServiceDep,
    principal: PrincipalDep,
    job_id: JobId,
    attempt: Attempt = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> DeadLetters:
    """Chains the job could not do, each with its reason; inputs that are no chain too."""
    row, _ = owned_job(service, principal, job_id)
    return dead_letters(service, row, attempt, offset, limit)


@router.get("/{job_id}/notes")
@scope("read", "jobs")
def get_notes(
    service: ServiceDep,
    principal: PrincipalDep,
    job_id: JobId,
    attempt: Attempt = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> Notes:
    """What was left out of good chains, in words."""
    row, _ = owned_job(service, principal, job_id)
    number = attempt or row.attempts
    total, notes = service.jobs.chains(row.id, number, "note", offset, limit)
    return Notes(attempt=number, total=total, notes=[view_of(ChainWord, note) for note in notes])


@router.get("/{job_id}/log", response_class=PlainTextResponse)
@scope("jobs")
def get_log(
    service: ServiceDep, principal: PrincipalDep, job_id: JobId, attempt: Attempt = None
) -> PlainTextResponse:
    """The last 64 KiB the process of an attempt wrote."""
    row, _ = owned_job(service, principal, job_id)
    return PlainTextResponse(job_log(service, job_id, attempt or row.attempts))


def dead_letters(
    service: Service, row: JobRow, attempt: int | None, offset: int, limit: int
) -> DeadLetters:
    """A page of what an attempt of a job (the last, if none is given) could not do."""
    number = attempt or row.attempts
    total, chains = service.jobs.chains(row.id, number, "broken", offset, limit)
    words = [view_of(ChainWord, chain) for chain in chains]
    return DeadLetters(attempt=number, total=total, chains=words)


def job_log(service: Service, job_id: str, attempt: int) -> str:
    """The end of what the process of an attempt wrote."""
    text = service.scheduler.log(job_id, attempt)
    if text is None:
        kept = {one.number: one.log for one in service.jobs.attempts(job_id)}
        text = kept.get(attempt, "")
    return text


def owned_job(service: Service, principal: Principal, job_id: str) -> tuple[JobRow, DatasetRow]:
    """A job this principal may see, and its dataset.

    Raises:
        Problem: 404; 403, it is for a dataset outside the token's list.
    """
    row, dataset = service.jobs.get(job_id)
    principal.require_dataset(dataset.name)
    return row, dataset


def job_view(row: JobRow, dataset: DatasetRow, principal: Principal) -> JobView:
    """A job as this principal may see it."""
    input_uri = row.spec["input_uri"] if principal.sees_places else None
    return view_of(JobView, row, dataset=dataset.name, input_uri=input_uri, ref=row.spec["ref"])

"""The queue of featurize jobs: rows that the service adds and its child processes run.

    queued -> running -> succeeded | failed | cancelled
                 └─> cancelling ─> cancelled

A job that is interrupted (its service stops or dies) is queued again; running it
again keeps every unit that is done, so nothing is lost but seconds. So is a job whose
process dies, however often, as long as it gets further in between. Runs are numbered, so
that a process which was taken for dead writes nothing once the next one runs.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, get_args

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from evofeed.service.database.database import Database
from evofeed.service.database.tables import AuditRow, DatasetRow, JobChain, JobRow, record
from evofeed.service.problems import Problem
from evofeed.service.views import ENDED as ENDED
from evofeed.service.views import State

QUEUED: Final = "queued"
RUNNING: Final = "running"
CANCELLING: Final = "cancelling"
CANCELLED: Final = "cancelled"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
SILENCE: Final = 60.0
"""Seconds without a heartbeat, sent every second, after which a job's process counts as dead."""
MAX_DEATHS: Final = 5
"""Consecutive deaths of a job's process without progress after which the job fails."""

AWAY: Final = 75
"""Exit code of a job's process that lost the database, which is not the job's fault."""
_CHAIN: Final = ("kind", "chain_id", "type", "message", "path", "line")
_JOBS: Final = select(JobRow, DatasetRow).join(DatasetRow, JobRow.dataset_id == DatasetRow.id)


class JobQueue:
    """The jobs of one service; a process counts as dead after `silence` seconds without a beat."""

    def __init__(self, database: Database, max_queued: int, silence: float = SILENCE) -> None:
        self._database, self._max_queued, self._silence = database, max_queued, silence

    def submit(
        self,
        dataset: DatasetRow,
        spec: dict[str, Any],
        principal: str,
        message: str = "",
        key: str | None = None,
    ) -> JobRow:
        """Queue a job; a `key` used before returns the earlier job."""
        now = time.time()
        named = hashlib.sha256(f"{principal}\n{key}".encode()).hexdigest()[:16]
        row = JobRow(
            id=secrets.token_hex(8) if key is None else named, dataset_id=dataset.id, spec=spec,
            state=QUEUED, attempts=0, deaths=0, furthest=0, log="", progress={}, result={},
            error="", message=message, retry=False, created_at=now, updated_at=now,
            principal=principal, charged_to=principal,
        )  # fmt: skip
        with self._database.write() as session:
            self._database.alone(session, "jobs")  # so that no other job is added meanwhile
            if (earlier := session.get(JobRow, row.id)) is not None:
                request = (earlier.dataset_id, earlier.spec, earlier.message)
                if request != (dataset.id, spec, message):
                    detail = "this Idempotency-Key was used for another job"
                    raise Problem(422, "idempotency", detail, next="choose a new key for a new job")
                return earlier
            self._require_room(session)
            session.add(row)
            record(session, principal, "job.submit", row.id, dataset=dataset.name)
        return row

    def _require_room(self, session: Session) -> None:
        waiting = select(func.count()).where(JobRow.state == QUEUED)
        if (session.scalar(waiting) or 0) >= self._max_queued:
            message = f"{self._max_queued} jobs wait already"
            hint = "wait for some to end, or cancel some"
            raise Problem(429, "queue_full", message, next=hint, wait=60)

    def get(
        self, job_id: str, datasets: Collection[str] | None = None
    ) -> tuple[JobRow, DatasetRow]:
        """A job and its dataset, one of these if given (raises Problem: 404, as if unknown)."""
        with self._database.read() as session:
            row = session.execute(_JOBS.where(JobRow.id == job_id)).one_or_none()
        if row is None or (datasets is not None and row[1].name not in datasets):
            hint = "`evofeed jobs ls URL` lists them"
            raise Problem(404, "not_found", f"no job {job_id!r}", next=hint)
        return row[0], row[1]

    def newest(
        self,
        *,
        state: str | None = None,
        only: frozenset[str] | None = None,
        before: float | None = None,
        limit: int = 100,
    ) -> list[tuple[JobRow, DatasetRow]]:
        """Jobs, newest first: in a state, `only` of datasets of these names, `before` a time."""
        query = _JOBS if state is None else _JOBS.where(JobRow.state == state)
        if only is not None:
            query = query.where(DatasetRow.name.in_(sorted(only)))
        if before is not None:
            query = query.where(JobRow.created_at < before)
        with self._database.read() as session:
            rows = session.execute(query.order_by(JobRow.created_at.desc()).limit(limit))
            return [(row[0], row[1]) for row in rows]

    def counts(self) -> dict[str, int]:
        """Number of jobs by state."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self._database.read() as session:
            rows = {state: int(count) for state, count in session.execute(query)}
        return {state: rows.get(state, 0) for state in get_args(State)}

    def cancel(self, job_id: str, principal: str) -> None:
        """Ask a job to stop; a waiting one is cancelled at once, an ended one stays as it is."""
        with self._database.write() as session:
            for before, after in ((QUEUED, CANCELLED), (RUNNING, CANCELLING)):
                moved = session.execute(
                    update(JobRow)
                    .where(JobRow.id == job_id, JobRow.state == before)
                    .values(state=after, updated_at=time.time())
                )
                if moved.rowcount:  # type: ignore[attr-defined]
                    record(session, principal, "job.cancel", job_id)
                    return

    def requeue(self, job_id: str, principal: str) -> None:
        """Queue a job that has ended once more, in the name of the caller."""
        with self._database.write() as session:
            self._database.alone(session, "jobs")
            self._require_room(session)
            values = {"state": QUEUED, "error": "", "progress": {}, "result": {}, "retry": True}
            values |= {"deaths": 0, "furthest": 0}
            moved = session.execute(
                update(JobRow)
                .where(JobRow.id == job_id, JobRow.state.in_(ENDED))
                .values(**values, charged_to=principal, updated_at=time.time())
            )
            if not moved.rowcount:  # type: ignore[attr-defined]
                raise Problem(
                    409, "job_not_ended", "this job has not ended", next="wait, or cancel it first"
                )
            record(session, principal, "job.retry", job_id)

    def chains(self, job_id: str, kind: str, offset: int, limit: int) -> tuple[int, list[JobChain]]:
        """The number of a job's messages of this kind, and a page of them."""
        of_it = (JobChain.job_id == job_id, JobChain.kind == kind)
        page = select(JobChain).where(*of_it).order_by(JobChain.id).offset(offset).limit(limit)
        with self._database.read() as session:
            total = session.scalar(select(func.count()).select_from(JobChain).where(*of_it)) or 0
            return total, list(session.scalars(page))

    def prune(self, before: float) -> list[str]:
        """Delete jobs that ended before a time; returns their ids."""
        old = (JobRow.state.in_(ENDED), JobRow.updated_at < before)
        with self._database.write() as session:
            ids = list(session.scalars(select(JobRow.id).where(*old).limit(1000)))
            session.execute(delete(JobRow).where(JobRow.id.in_(ids), *old))
            if ids:
                record(session, "local", "job.prune", str(len(ids)))
        return ids

    def prune_audit(self, before: float) -> None:
        """Delete lines of the audit before a time, and record that in it."""
        with self._database.write() as session:
            gone = session.execute(delete(AuditRow).where(AuditRow.at < before))
            if lines := gone.rowcount:  # type: ignore[attr-defined]
                record(session, "local", "audit.prune", str(lines))

    # written by the scheduler and the child process

    def claim(self, max_running: int) -> str | None:
        """Take the oldest waiting job that may run now: one at a time for each dataset."""
        now = time.time()
        with self._database.write() as session:
            self._database.alone(session, "jobs")  # of all services on this database
            busy = session.scalars(
                select(JobRow).where(JobRow.state.in_([RUNNING, CANCELLING]))
            ).all()
            for job in busy:
                if job.updated_at < now - self._silence:
                    _die(session, job, "its process fell silent")
            alive = [job for job in busy if job.state in (RUNNING, CANCELLING)]
            if len(alive) >= max_running:
                return None
            chosen = session.scalar(
                select(JobRow)
                .where(JobRow.state == QUEUED)
                .where(JobRow.dataset_id.not_in([job.dataset_id for job in alive]))
                .order_by(JobRow.created_at)
                .limit(1)
            )
            if chosen is None:
                return None
            chosen.state, chosen.attempts, chosen.updated_at = RUNNING, chosen.attempts + 1, now
            chosen.error = ""
            session.execute(delete(JobChain).where(JobChain.job_id == chosen.id))
            return chosen.id

    def heartbeat(
        self,
        job_id: str,
        progress: dict[str, Any] | None,
        chains: Sequence[Mapping[str, Any]] = (),
        *,
        attempt: int | None = None,
    ) -> bool:
        """Record a job's heartbeat, progress and messages; true if it should stop.

        A process that was silent for so long that another `attempt` has begun stops too, and
        nothing of it is written.
        """
        with self._of_attempt(job_id, attempt) as (session, job):
            if job is None:
                return True
            job.updated_at = time.time()
            if progress is not None:
                job.progress = progress
            _add_chains(session, job, chains)
            return job.state != RUNNING

    def end(
        self,
        job_id: str,
        state: str,
        *,
        error: str = "",
        result: dict[str, Any] | None = None,
        chains: Sequence[Mapping[str, Any]] | None = None,
        attempt: int | None = None,
    ) -> None:
        """Record the end of a run, if it still runs: the first record counts.

        `chains` is all there is to say of chains, in place of what heartbeats said.
        """
        with self._of_attempt(job_id, attempt) as (session, job):
            if job is None or job.state not in (RUNNING, CANCELLING):
                return
            if chains is not None:
                session.execute(delete(JobChain).where(JobChain.job_id == job_id))
                _add_chains(session, job, chains)
            if (job.state, state) == (CANCELLING, QUEUED):
                state = CANCELLED  # it stopped before it got the request
            _end(session, job, state, error, result or {})

    def died(self, job_id: str, why: str) -> None:
        """Requeue a job whose process died, unless it makes no progress."""
        with self._of_attempt(job_id) as (session, job):
            if job is not None and job.state in (RUNNING, CANCELLING):
                _die(session, job, why)

    def keep_log(self, job_id: str, text: str) -> None:
        """Store the end of the log of a job's processes."""
        with self._of_attempt(job_id) as (_, job):
            if job is not None:
                job.log = text.replace("\x00", "")

    @contextmanager
    def _of_attempt(
        self, job_id: str, attempt: int | None = None
    ) -> Iterator[tuple[Session, JobRow | None]]:
        """The job's row for update; None if it was deleted or another attempt has begun."""
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            is_current = job is not None and attempt in (None, job.attempts)
            yield session, job if is_current else None


def _end(session: Session, job: JobRow, state: str, error: str, result: dict[str, Any]) -> None:
    job.state, job.error, job.updated_at, job.result = state, error, time.time(), result
    if state in ENDED:
        snapshot = result.get("snapshot")
        record(session, job.charged_to, "job.end", job.id, state=state, snapshot=snapshot)


def _die(session: Session, job: JobRow, why: str) -> None:
    """Requeue a job whose process died, or fail it after too many deaths without progress."""
    if job.state == CANCELLING:
        return _end(session, job, CANCELLED, why, {})
    done = job.progress.get("good", 0) + job.progress.get("broken", 0)
    if done > job.furthest:
        job.deaths, job.furthest = 0, done
    job.deaths += 1
    if job.deaths >= MAX_DEATHS:
        gone = f"{why}, {job.deaths} times in a row without getting any further; see its log"
        return _end(session, job, FAILED, gone, {})
    return _end(session, job, QUEUED, f"{why}; queued again", {})


def _add_chains(session: Session, job: JobRow, chains: Sequence[Mapping[str, Any]]) -> None:
    """Insert messages, without the NUL characters that PostgreSQL refuses."""
    for chain in chains:
        clean = {name: _text(chain.get(name)) for name in _CHAIN}
        session.add(JobChain(job_id=job.id, **clean))


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.replace("\x00", "\ufffd").encode(errors="replace").decode()

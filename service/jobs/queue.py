"""The queue of featurize jobs: rows that the service adds and its children work off.

    queued -> running -> succeeded | failed | cancelled
                 └─> cancelling ─> cancelled

A job that is interrupted (its service stops or dies) is queued again; running it
again keeps every unit that is done, so nothing is lost but seconds. So is a job whose
process dies, however often, as long as it gets further in between. Each run is an
attempt, and what it said, made and could not do is kept beside those before it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from evofeed.service.access.audit import record
from evofeed.service.access.quotas import require_room
from evofeed.service.database.database import Database
from evofeed.service.database.tables import AuditRow, DatasetRow, JobAttempt, JobChain, JobRow
from evofeed.service.problems import Problem
from evofeed.service.timings import USUAL

QUEUED: Final = "queued"
RUNNING: Final = "running"
CANCELLING: Final = "cancelling"
CANCELLED: Final = "cancelled"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STATES: Final = (QUEUED, RUNNING, CANCELLING, CANCELLED, SUCCEEDED, FAILED)
ENDED: Final = frozenset({CANCELLED, SUCCEEDED, FAILED})
INTERRUPTED: Final = "interrupted"
DIED: Final = "died"
"""How an attempt ends that is not the last: told to stop, or without a word."""

MAX_DEATHS: Final = 5
"""Attempts of a job that die in a row, none getting further than those before, until it is left."""

AWAY: Final = 75
"""Exit code of a job's process whose database is away: no fault of the job."""


class JobQueue:
    """The jobs of one service, in its database.

    Args:
        database: where they are kept.
        max_queued: that may wait.
        silence: seconds after which a running job's process counts as dead.
    """

    def __init__(
        self, database: Database, max_queued: int, silence: float = USUAL.job_silence
    ) -> None:
        self._database, self._max_queued, self._silence = database, max_queued, silence

    def submit(
        self, dataset: DatasetRow, spec: dict[str, Any], principal: str, message: str = ""
    ) -> JobRow:
        """Queue a job.

        Raises:
            Problem: 429, too many wait already, or a quota is used up.
        """
        now = time.time()
        row = JobRow(
            id=secrets.token_hex(8),
            dataset_id=dataset.id,
            spec=spec,
            state=QUEUED,
            attempts=0,
            progress={},
            result={},
            error="",
            message=message,
            retry=False,
            created_at=now,
            updated_at=now,
            principal=principal,
            charged_to=principal,
        )
        with self._database.write() as session:
            self._require_room(session, principal)
            session.add(row)
            record(session, principal, "job.submit", row.id, dataset=dataset.name)
            session.flush()
            session.expunge(row)
        return row

    def _require_room(self, session: Session, principal: str) -> None:
        self._database.alone(session, "jobs")  # so that what is counted is all there is
        waiting = select(func.count()).where(JobRow.state == QUEUED)
        if (session.scalar(waiting) or 0) >= self._max_queued:
            raise Problem(
                429,
                "queue_full",
                f"{self._max_queued} jobs wait already",
                next="wait for some to end, or cancel some",
                wait=60,
            )
        require_room(session, principal)

    def get(self, job_id: str) -> tuple[JobRow, DatasetRow]:
        """A job and its dataset.

        Raises:
            Problem: 404.
        """
        query = select(JobRow, DatasetRow).join(DatasetRow, JobRow.dataset_id == DatasetRow.id)
        with self._database.read() as session:
            found = session.execute(query.where(JobRow.id == job_id)).one_or_none()
        if found is None:
            raise Problem(404, "not_found", f"no job {job_id!r}", next="list: GET /v1/jobs")
        return found[0], found[1]

    def newest(
        self,
        *,
        state: str | None = None,
        only: frozenset[str] | None = None,
        before: float | None = None,
        limit: int = 100,
    ) -> list[tuple[JobRow, DatasetRow]]:
        """Jobs, newest first.

        Args:
            state: only those in it.
            only: only those of these datasets, by name.
            before: only those submitted before this time.
            limit: how many at most.
        """
        query = select(JobRow, DatasetRow).join(DatasetRow, JobRow.dataset_id == DatasetRow.id)
        if state is not None:
            query = query.where(JobRow.state == state)
        if only is not None:
            query = query.where(DatasetRow.name.in_(sorted(only)))
        if before is not None:
            query = query.where(JobRow.created_at < before)
        with self._database.read() as session:
            found = session.execute(query.order_by(JobRow.created_at.desc()).limit(limit))
            return [(row[0], row[1]) for row in found]

    def counts(self) -> dict[str, int]:
        """How many jobs there are in each state."""
        query = select(JobRow.state, func.count()).group_by(JobRow.state)
        with self._database.read() as session:
            found = {state: int(count) for state, count in session.execute(query)}
        return {state: found.get(state, 0) for state in STATES}

    def cancel(self, job_id: str, principal: str) -> None:
        """Ask a job to stop; one that waits is cancelled at once, one that ended stays as it is."""
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
        """Queue a job that has ended once more, at the cost of whoever asks for it.

        Raises:
            Problem: 409, it has not ended; 429, too many wait already, or a quota is used up.
        """
        with self._database.write() as session:
            self._require_room(session, principal)
            values = {"state": QUEUED, "error": "", "progress": {}, "result": {}, "retry": True}
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

    def attempts(self, job_id: str) -> list[JobAttempt]:
        """The runs of a job, newest first."""
        query = select(JobAttempt).where(JobAttempt.job_id == job_id)
        with self._database.read() as session:
            return list(session.scalars(query.order_by(JobAttempt.number.desc())))

    def chains(
        self, job_id: str, attempt: int, kind: str, offset: int, limit: int
    ) -> tuple[int, list[JobChain]]:
        """How many chains an attempt has something of this kind to say of, and a page of them."""
        of_it = (JobChain.job_id == job_id, JobChain.attempt == attempt, JobChain.kind == kind)
        page = select(JobChain).where(*of_it).order_by(JobChain.id).offset(offset).limit(limit)
        with self._database.read() as session:
            total = session.scalar(select(func.count()).select_from(JobChain).where(*of_it)) or 0
            return total, list(session.scalars(page))

    def prune(self, before: float) -> list[str]:
        """Forget jobs that ended before a time, with their attempts; their ids."""
        old = (JobRow.state.in_(ENDED), JobRow.updated_at < before)
        with self._database.write() as session:
            ids = list(session.scalars(select(JobRow.id).where(*old).limit(1000)))
            session.execute(delete(JobRow).where(JobRow.id.in_(ids), *old))
            if ids:
                record(session, "local", "job.prune", str(len(ids)))
        return ids

    def prune_audit(self, before: float) -> None:
        """Forget lines of the audit from before a time, and say so in it."""
        with self._database.write() as session:
            gone = session.execute(delete(AuditRow).where(AuditRow.at < before))
            if gone.rowcount:  # type: ignore[attr-defined]
                lines = gone.rowcount  # type: ignore[attr-defined]
                record(session, "local", "audit.prune", str(lines))

    # what the scheduler and the child write

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
                    _died(session, job, "its process fell silent")
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
            session.add(
                JobAttempt(
                    job_id=chosen.id,
                    number=chosen.attempts,
                    principal=chosen.charged_to,
                    state=RUNNING,
                    started_at=now,
                )
            )
            return chosen.id

    def heartbeat(
        self,
        job_id: str,
        progress: dict[str, Any] | None,
        chains: Sequence[Mapping[str, Any]] = (),
        *,
        attempt: int | None = None,
    ) -> bool:
        """Say that a job lives, how far it is and what broke; True if it is asked to stop.

        A process that was silent for so long that another `attempt` has begun stops too, and
        nothing of it is written.
        """
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            if job is None or attempt not in (None, job.attempts):
                return True
            job.updated_at = time.time()
            if progress is not None:
                job.progress = progress
                _attempt(session, job).progress = progress
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
        """Write how an attempt ended; only if it still runs, so that the first word counts.

        Args:
            job_id: the job.
            state: its state from now on.
            error: why, if it went wrong.
            result: what it made.
            chains: all there is to say of chains, in place of what heartbeats said.
            attempt: its number, if another one may have begun.
        """
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            if job is None or job.state not in (RUNNING, CANCELLING):
                return
            if attempt not in (None, job.attempts):
                return
            if chains is not None:
                session.execute(
                    delete(JobChain).where(
                        JobChain.job_id == job_id, JobChain.attempt == job.attempts
                    )
                )
                _add_chains(session, job, chains)
            if (job.state, state) == (CANCELLING, QUEUED):
                state = CANCELLED  # stopped before it heard of that
            _end(session, job, state, error, result or {})

    def died(self, job_id: str, why: str) -> None:
        """Queue a job again whose process died without a word; not one that gets nowhere."""
        with self._database.write() as session:
            job = session.get(JobRow, job_id, with_for_update=True)
            if job is not None and job.state in (RUNNING, CANCELLING):
                _died(session, job, why)

    def keep_log(self, job_id: str, text: str) -> None:
        """Keep the end of what the last attempt's process wrote."""
        with self._database.write() as session:
            if job := session.get(JobRow, job_id):
                _attempt(session, job).log = text.replace("\x00", "")


def _end(session: Session, job: JobRow, state: str, error: str, result: dict[str, Any]) -> None:
    now = time.time()
    attempt = _attempt(session, job)
    attempt.state = state if state in ENDED else INTERRUPTED
    attempt.ended_at, attempt.error = now, error
    attempt.progress, attempt.result = job.progress, result
    job.state, job.error, job.updated_at, job.result = state, error, now, result
    if state in ENDED:
        snapshot = result.get("snapshot")
        record(session, job.charged_to, "job.end", job.id, state=state, snapshot=snapshot)


def _died(session: Session, job: JobRow, why: str) -> None:
    """Nobody can tell who killed a process; one that does its work dies of others."""
    if job.state == CANCELLING:
        return _end(session, job, CANCELLED, why, {})
    attempt = _attempt(session, job)
    attempt.state, attempt.progress = DIED, job.progress
    session.flush()
    if (deaths := _deaths_in_a_row(session, job)) >= MAX_DEATHS:
        gone = f"{why}, {deaths} times in a row without getting any further; see its log"
        return _end(session, job, FAILED, gone, {})
    _end(session, job, QUEUED, f"{why}; queued again", {})
    attempt.state = DIED
    return None


def _deaths_in_a_row(session: Session, job: JobRow) -> int:
    """Attempts that died since the job last got further, or was retried by its owner."""
    query = select(JobAttempt).where(JobAttempt.job_id == job.id).order_by(JobAttempt.number)
    deaths, furthest = 0, 0
    for attempt in session.scalars(query):
        done = attempt.progress.get("good", 0) + attempt.progress.get("broken", 0)
        if attempt.state in ENDED:
            deaths, furthest = 0, 0
            continue
        if done > furthest:
            deaths, furthest = 0, done
        deaths += attempt.state == DIED
    return deaths


def _attempt(session: Session, job: JobRow) -> JobAttempt:
    query = select(JobAttempt).where(JobAttempt.job_id == job.id, JobAttempt.number == job.attempts)
    return session.scalars(query).one()


def _add_chains(session: Session, job: JobRow, chains: Sequence[Mapping[str, Any]]) -> None:
    """Enter chains, without the bytes that PostgreSQL cannot keep."""
    names = ("kind", "chain_id", "type", "message", "path", "line")
    for chain in chains:
        values = {name: chain.get(name) for name in names}
        clean = {
            name: value.replace("\x00", "\ufffd").encode(errors="replace").decode()
            if isinstance(value, str)
            else value
            for name, value in values.items()
        }
        session.add(JobChain(job_id=job.id, attempt=job.attempts, **clean))

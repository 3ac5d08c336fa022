"""The queue of featurize jobs: rows that the service adds and its children work off.

    queued -> running -> succeeded | failed | cancelled
                 └─> cancelling ─> cancelled

A job that is interrupted (its service stops or dies) is queued again; running it
again keeps every unit that is done, so nothing is lost but seconds.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Final

from sqlalchemy import func, select, update

from evofeed.service.audit import record
from evofeed.service.database import Database
from evofeed.service.problems import Problem
from evofeed.service.quotas import NO_QUOTAS, Quotas, require_room
from evofeed.service.tables import DatasetRow, JobRow

QUEUED: Final = "queued"
RUNNING: Final = "running"
CANCELLING: Final = "cancelling"
CANCELLED: Final = "cancelled"
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
STATES: Final = (QUEUED, RUNNING, CANCELLING, CANCELLED, SUCCEEDED, FAILED)
ENDED: Final = frozenset({CANCELLED, SUCCEEDED, FAILED})

LOST_SECONDS: Final = 60.0
"""Silence after which a running job's process counts as dead; it speaks every second or so."""


class JobQueue:
    """The jobs of one service, in its database."""

    def __init__(self, database: Database, max_queued: int) -> None:
        self._database, self._max_queued = database, max_queued

    def submit(
        self,
        dataset: DatasetRow,
        spec: dict[str, Any],
        principal: str,
        quotas: Quotas = NO_QUOTAS,
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
            created_at=now,
            updated_at=now,
            principal=principal,
        )
        with self._database.write() as session:
            waiting = select(func.count()).where(JobRow.state == QUEUED)
            if (session.scalar(waiting) or 0) >= self._max_queued:
                raise Problem(
                    429,
                    "queue_full",
                    f"{self._max_queued} jobs wait already",
                    next="wait for some to end, or cancel some",
                    headers={"Retry-After": "60"},
                )
            require_room(session, principal, quotas)
            session.add(row)
            record(session, principal, "job.submit", row.id, dataset=dataset.name)
            session.flush()
            session.expunge(row)
        return row

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

    def list(
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

    def requeue(
        self,
        job_id: str,
        principal: str,
        quotas: Quotas = NO_QUOTAS,
    ) -> None:
        """Queue a job that has ended once more.

        Raises:
            Problem: 409, it has not ended; 429, a quota is used up.
        """
        with self._database.write() as session:
            require_room(session, principal, quotas)
            moved = session.execute(
                update(JobRow)
                .where(JobRow.id == job_id, JobRow.state.in_(ENDED))
                .values(state=QUEUED, error="", progress={}, result={}, updated_at=time.time())
            )
            if not moved.rowcount:  # type: ignore[attr-defined]
                raise Problem(
                    409, "job_not_ended", "this job has not ended", next="wait, or cancel it first"
                )
            record(session, principal, "job.retry", job_id)

    # what the scheduler and the child write

    def claim(self, max_running: int) -> str | None:
        """Take the oldest waiting job that may run now: one at a time for each dataset."""
        now = time.time()
        with self._database.write() as session:
            busy = session.scalars(
                select(JobRow).where(JobRow.state.in_([RUNNING, CANCELLING]))
            ).all()
            for job in busy:
                if job.updated_at < now - LOST_SECONDS:
                    job.state = CANCELLED if job.state == CANCELLING else QUEUED
                    job.updated_at = now
            alive = [job for job in busy if job.state in (RUNNING, CANCELLING)]
            if len(alive) >= max_running:
                return None
            waiting = (
                select(JobRow)
                .where(JobRow.state == QUEUED)
                .where(JobRow.dataset_id.not_in([job.dataset_id for job in alive]))
                .order_by(JobRow.created_at)
                .limit(1)
                # two services on one PostgreSQL: each takes another row
                .with_for_update(skip_locked=True)
            )
            chosen = session.scalar(waiting)
            if chosen is None:
                return None
            chosen.state, chosen.attempts, chosen.updated_at = RUNNING, chosen.attempts + 1, now
            return chosen.id

    def heartbeat(self, job_id: str, progress: dict[str, Any] | None) -> bool:
        """Say that a job lives and how far it is; True if it is asked to stop."""
        values: dict[str, Any] = {"updated_at": time.time()}
        if progress is not None:
            values["progress"] = progress
        with self._database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(**values))
            state = session.scalar(select(JobRow.state).where(JobRow.id == job_id))
        return state != RUNNING

    def end(self, job_id: str, state: str, *, error: str = "", **values: Any) -> None:
        """Write how a job ended; only if it still runs, so that the first word stands."""
        with self._database.write() as session:
            session.execute(
                update(JobRow)
                .where(JobRow.id == job_id, JobRow.state.in_([RUNNING, CANCELLING]))
                .values(state=state, error=error, updated_at=time.time(), **values)
            )

"""Everything the routes share, made once for each application."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import IntegrityError

from evofeed.service.access.auth import Authority
from evofeed.service.cursor import CursorSigner
from evofeed.service.database.database import Database
from evofeed.service.database.leader import Leader
from evofeed.service.database.tables import SecretRow
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.metrics import Metrics
from evofeed.service.refs.history import Notes
from evofeed.service.settings import USUAL, ServiceSettings, Timings
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.find import Finder
from evofeed.service.tickets.tickets import Tickets
from evofeed.service.work import Work


@dataclass(frozen=True, slots=True)
class Service:
    """The parts behind the routes."""

    settings: ServiceSettings
    timings: Timings
    database: Database
    catalog: Catalog
    finder: Finder
    notes: Notes
    authority: Authority
    work: Work
    signer: CursorSigner
    metrics: Metrics
    jobs: JobQueue
    scheduler: Scheduler
    tickets: Tickets
    leader: Leader
    stopping: threading.Event

    @classmethod
    def start(cls, settings: ServiceSettings, timings: Timings = USUAL) -> Service:
        """Open the database, bring an embedded one up to date, register the datasets.

        Raises:
            ServiceError: the database does not answer, or its tables are old
                (PostgreSQL is only migrated by `evofeed serve --migrate`).
        """
        database = Database(settings.url, settings.workers)
        try:
            database.make_current()
            return cls._on(database, settings, timings)
        except BaseException:
            database.close()
            raise

    @classmethod
    def _on(cls, database: Database, settings: ServiceSettings, timings: Timings) -> Service:
        catalog = Catalog(database, settings.grace_seconds, timings)
        for name, uri in settings.datasets.items():
            catalog.register(name, uri, replace=True)
        jobs = JobQueue(database, settings.max_queued_jobs, timings.job_silence)
        scheduler = Scheduler(jobs, settings)
        tickets = Tickets(settings, database)
        counts = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        return cls(
            settings=settings,
            timings=timings,
            database=database,
            catalog=catalog,
            finder=Finder(catalog),
            notes=Notes(database),
            authority=Authority(database, timings.trust, settings.grace_seconds),
            work=Work(settings.request_seconds, settings.heavy_requests),
            signer=CursorSigner(_cursor_key(database)),
            metrics=Metrics(Path(counts) if counts else None),
            jobs=jobs,
            scheduler=scheduler,
            tickets=tickets,
            leader=Leader(database, f"duties of {settings.home}", (scheduler, tickets)),
            stopping=threading.Event(),
        )

    def close(self) -> None:
        """Interrupt the jobs, let go of files and connections."""
        self.stopping.set()
        self.work.close()
        self.leader.close()
        self.catalog.close()
        self.database.close()


def _cursor_key(database: Database) -> bytes:
    """The key that signs cursors: kept, so that they outlive a restart."""
    with database.read() as session:
        row = session.get(SecretRow, "cursor")
    if row is not None:
        return row.value
    with contextlib.suppress(IntegrityError), database.write() as session:
        session.add(SecretRow(name="cursor", value=secrets.token_bytes(32)))
    with database.read() as session:  # ours, or that of a service that started with us
        return session.get_one(SecretRow, "cursor").value

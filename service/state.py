"""Everything the routes share, made once for each application."""

from __future__ import annotations

import contextlib
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy.exc import IntegrityError

from evofeed.service.access.authority import Authority
from evofeed.service.access.limits import RateLimiter
from evofeed.service.cursor import CursorSigner
from evofeed.service.database.database import Database
from evofeed.service.database.tables import SecretRow
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.leader import Leader
from evofeed.service.metrics import METRICS, Metrics
from evofeed.service.refs.noticed import Noticed
from evofeed.service.settings import ServiceSettings
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.find import Finder
from evofeed.service.snapshots.kept import Kept
from evofeed.service.snapshots.links import Links
from evofeed.service.tickets.tickets import Tickets
from evofeed.service.timings import USUAL, Timings
from evofeed.service.webhooks.notifier import Notifier
from evofeed.service.work import Work

_FAILURES: Final = 2.0  # wrong tokens a second that one address may try
_FAILURES_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class Service:
    """The parts behind the routes."""

    settings: ServiceSettings
    timings: Timings
    database: Database
    catalog: Catalog
    finder: Finder
    noticed: Noticed
    authority: Authority
    work: Work
    limiter: RateLimiter
    failures: RateLimiter
    noted: RateLimiter
    signer: CursorSigner
    links: Links | None
    metrics: Metrics
    jobs: JobQueue
    scheduler: Scheduler
    notifier: Notifier
    tickets: Tickets
    leader: Leader
    packed: Kept[str, bytes]
    answers: Kept[tuple[str, str, bytes], bytes]
    stopping: threading.Event

    @classmethod
    def start(
        cls, settings: ServiceSettings, shared: Path | None = None, timings: Timings = USUAL
    ) -> Service:
        """Open the database, bring an embedded one up to date, register the datasets.

        Args:
            settings: how it runs.
            shared: folder of what its workers count together; None where there is one.
            timings: how long its parts wait.

        Raises:
            ServiceError: the database does not answer, or its tables are old
                (PostgreSQL is only migrated by `evofeed serve --migrate`).
        """
        database = Database(settings.url, settings.workers, timings)
        try:
            if database.is_sqlite:
                database.upgrade()
            else:
                database.require_current()
            return cls._on(database, settings, shared, timings)
        except BaseException:
            database.close()
            raise

    @classmethod
    def _on(
        cls, database: Database, settings: ServiceSettings, shared: Path | None, timings: Timings
    ) -> Service:
        catalog = Catalog(database, settings.grace_seconds, timings)
        for name, uri in settings.datasets.items():
            catalog.register(name, uri, replace=True)
        jobs = JobQueue(database, settings.max_queued_jobs, timings.job_silence)
        scheduler = Scheduler(jobs, settings)
        notifier = Notifier(database, settings.webhook_hosts, timings)
        tickets = Tickets(settings, database)
        buckets = [None if shared is None else shared / f"{n}.buckets" for n in range(3)]
        return cls(
            settings=settings,
            timings=timings,
            database=database,
            catalog=catalog,
            finder=Finder(catalog),
            noticed=Noticed(catalog, database),
            authority=Authority(database, settings.grace_seconds),
            work=Work(settings.request_seconds, settings.heavy_requests),
            limiter=RateLimiter(settings.rate_per_second, settings.rate_burst, buckets[0]),
            failures=RateLimiter(_FAILURES, _FAILURES_AT_ONCE, buckets[1]),
            noted=RateLimiter(1 / 60, 5, buckets[2]),
            signer=CursorSigner(_cursor_key(database)),
            links=Links(settings.links, settings.link_secret) if settings.links else None,
            metrics=Metrics(None if shared is None else shared / METRICS),
            jobs=jobs,
            scheduler=scheduler,
            notifier=notifier,
            tickets=tickets,
            leader=Leader(settings.home, (scheduler, notifier, tickets)),
            packed=Kept(32 << 20, len),
            answers=Kept(64 << 20, len),
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

"""The objects shared by all routes, and the election of the leading process."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Sequence
from typing import Final, Protocol

from itsdangerous import BadData, Signer, URLSafeSerializer
from sqlalchemy.exc import IntegrityError

from evofeed.service.access.auth import Authority
from evofeed.service.database.database import Database
from evofeed.service.database.tables import SecretRow
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.jobs.scheduler import Scheduler
from evofeed.service.metrics import Metrics
from evofeed.service.problems import Problem
from evofeed.service.refs import Refs
from evofeed.service.remembered import AWAY
from evofeed.service.settings import ServiceSettings
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.rows import Finder
from evofeed.service.tickets import Tickets
from evofeed.service.work import Work


class Service:
    """The parts behind the routes; opens the database and upgrades an embedded one.

    Raises:
        ServiceError: the database does not answer, or its tables are old
            (PostgreSQL is only migrated by `evofeed serve --migrate`).
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.stopping = threading.Event()
        self.database = database = Database(settings.url, settings.workers)
        try:
            database.make_current()
            self.catalog = Catalog(database, settings.grace_seconds)
            for name, uri in settings.datasets.items():
                self.catalog.register(name, uri, replace=True)
            key = _signing_key(database)
            self.finder = Finder(self.catalog)
            self.refs = Refs(self.catalog)
            self.authority = Authority(database, key, settings.grace_seconds)
            self.work = Work(settings.request_seconds, settings.heavy_requests)
            self.signer = CursorSigner(key)
            self.metrics = Metrics(os.environ.get("PROMETHEUS_MULTIPROC_DIR"))
            self.jobs = JobQueue(database, settings.max_queued_jobs)
            self.scheduler = Scheduler(self.jobs, settings)
            self.tickets = Tickets(settings, database)
            duties = f"duties of {settings.home}"
            self.leader = Leader(database, duties, (self.scheduler, self.tickets))
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Interrupt the jobs, close files and connections."""
        self.stopping.set()
        self.work.close()
        self.leader.close()
        self.catalog.close()
        self.database.close()


def _signing_key(database: Database) -> bytes:
    """The key that signs cursors and cookies, stored so that they survive a restart."""
    with database.read() as session:
        row = session.get(SecretRow, "cursor")
    if row is not None:
        return row.value
    with contextlib.suppress(IntegrityError), database.write() as session:
        session.add(SecretRow(name="cursor", value=secrets.token_bytes(32)))
    with database.read() as session:  # this one, or that of a service started at the same time
        return session.get_one(SecretRow, "cursor").value


class CursorSigner:
    """Writes and reads cursors of pages, row numbers in a file that never changes, with one secret
    key; and makes the words of forms."""

    def __init__(self, key: bytes) -> None:
        options = {"digest_method": hashlib.sha256}
        self._cursors = URLSafeSerializer(key, salt="cursor", signer_kwargs=options)
        self._words = Signer(key, salt="word", digest_method=hashlib.sha256)

    def write(self, row: int, digest: str, query: str) -> str:
        """A cursor that continues at `row` of exactly this listing of a snapshot.

        It keeps its snapshot if the ref moves meanwhile; `query` is all else it depends on.
        """
        text = self._cursors.dumps([row, digest, _hash(query)])
        return text if isinstance(text, str) else text.decode()

    def read(self, cursor: str, query: str) -> tuple[int, str]:
        """The row and the snapshot a cursor continues at."""
        try:
            row, digest, hashed = self._cursors.loads(cursor)
        except (BadData, UnicodeError):
            raise bad_cursor("the cursor was not made by this service") from None
        if hashed != _hash(query):
            raise bad_cursor("the cursor belongs to another filter, dataset or set of columns")
        return int(row), str(digest)

    def word(self, text: str) -> str:
        """A signature of `text`, which needs the key."""
        return self._words.get_signature(text.encode("utf-8", "surrogatepass")).decode()


def _hash(query: str) -> str:
    return hashlib.sha256(query.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def bad_cursor(message: str) -> Problem:
    """The problem of an invalid cursor."""
    hint = "send `next` back unchanged, with the same query"
    return Problem(422, "bad_cursor", message, next=hint)


_TICK: Final = 0.5


class Duty(Protocol):
    """Work that one process does for all of them."""

    def start(self) -> None:
        """Start."""

    def close(self) -> None:
        """Stop, also if it was not started."""


class Leader:
    """Starts the duties once this process holds the database's lock of that name.

    A lock ends with its process, or with its connection: then another process begins. This one
    continues too until it holds the lock again, which is harmless: duties claim their work in
    transactions.
    """

    def __init__(self, database: Database, name: str, duties: Sequence[Duty]) -> None:
        self._database, self._name, self._duties = database, name, duties
        self.leads = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="evofeed-leader", daemon=True)

    def start(self) -> None:
        """Take the lock now, or wait for it in a thread."""
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Stop the duties, then release the lock."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for duty in self._duties:
            duty.close()
        self._database.unlock(self._name)

    def _wait(self) -> None:
        while not self._stop.wait(_TICK):
            self._look()

    def _look(self) -> None:
        try:
            holds = self._database.lock(self._name)
        except AWAY:
            return
        if holds and not self.leads:
            self.leads = True
            for duty in self._duties:
                duty.start()

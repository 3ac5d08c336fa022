"""The database: one engine, short transactions, migrations.

SQLite embedded by default, PostgreSQL by URL; the same code runs on both, with
plain synchronous sessions in worker threads.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from evofeed.errors import ServiceError
from evofeed.service.database.changes import Changes
from evofeed.service.database.url import parse_url
from evofeed.service.timings import USUAL, Timings
from evofeed.service.work import require_thread

_MIGRATIONS = Path(__file__).parent / "migrations"
# A database that is away is noticed within seconds, not when TCP gives up.
_POSTGRES: dict[str, Any] = {
    "pool_pre_ping": True,
    "pool_timeout": 5,
    "connect_args": {
        "connect_timeout": 5,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": 10_000,
    },
}


class Database:
    """Sessions on one database.

    Args:
        url: where it is.
        workers: processes like this one: a PostgreSQL has connections for all of them together.
        timings: how long it is taken for granted that nobody has written to it.

    Attributes:
        changes: whether anybody has written to it.

    Raises:
        ServiceError: the URL is none of ours, or an SQLite file's folder cannot be made.
    """

    def __init__(self, url: str, workers: int = 1, timings: Timings = USUAL) -> None:
        self._url = parse_url(url)
        if self._url.drivername == "postgresql":  # SQLAlchemy's default driver is psycopg2
            self._url = self._url.set(drivername="postgresql+psycopg")
        self.is_sqlite = self._url.drivername == "sqlite"
        if self.is_sqlite:
            self._make_folder()
        half = max(2, 10 // workers)
        pool = {"pool_size": half, "max_overflow": half}
        options: dict[str, Any] = {} if self.is_sqlite else _POSTGRES | pool
        self.engine = create_engine(self._url, **options)
        self._watch: sqlite3.Connection | None = None
        self._watching = threading.Lock()
        self.changes = Changes(
            self._data_version if self.is_sqlite else self._snapshot, timings.unwritten
        )
        if self.is_sqlite:
            _prepare_sqlite(self.engine)

    def _data_version(self) -> int | None:
        """SQLite's own number, which its processes share in memory."""
        with self._watching:
            if self._watch is None:
                self._watch = sqlite3.connect(self._url.database or "", check_same_thread=False)
            try:
                return int(self._watch.execute("PRAGMA data_version").fetchone()[0])
            except sqlite3.Error:
                return None

    def _snapshot(self) -> str:
        """Which transactions a query of now would see: equal ones see the same rows."""
        with self.engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT txid_current_snapshot()::text").scalar_one()
        return str(found)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; nothing is committed."""
        require_thread()
        with Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session whose work is committed at the end, all or nothing."""
        require_thread()
        # IMMEDIATE takes SQLite's write lock at once; a lock taken later fails without waiting.
        engine = self.engine.execution_options(immediate=True)
        try:
            with Session(engine) as session, session.begin():
                yield session
        finally:  # also when its end is not known
            self.changes.wrote()

    def alone(self, session: Session, what: str) -> None:
        """Wait until no other write transaction is alone with `what`, until this one ends.

        SQLite has one writer at a time anyway; PostgreSQL is asked for a lock by that name.
        """
        if not self.is_sqlite:
            key = zlib.crc32(f"evofeed {what}".encode())
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": key})

    def upgrade(self) -> None:
        """Make the tables of a new database, or apply the migrations that are missing."""
        if self.is_current():
            return
        try:
            with self.engine.execution_options(immediate=True).begin() as connection:
                if not self.is_sqlite:  # two services may start at once
                    connection.execute(text("SELECT pg_advisory_xact_lock(4046203)"))
                if inspect(connection).has_table("alembic_version"):
                    _migrate(connection)
                else:
                    _make_tables(connection)
        except DatabaseError as error:
            raise self._unusable(str(error.orig or "no answer")) from None

    def is_current(self) -> bool:
        """True if the database answers and holds the newest tables.

        Raises:
            ServiceError: the database does not answer.
        """
        try:
            with self.engine.connect() as connection:
                if not inspect(connection).has_table("alembic_version"):
                    return False
                found = connection.scalar(text("SELECT version_num FROM alembic_version"))
        except DatabaseError as error:
            raise self._unusable(str(error.orig or "no answer")) from None
        return bool(found == newest_tables())

    def require_current(self) -> None:
        """Refuse a database whose tables are not the newest.

        Raises:
            ServiceError: it does not answer, or needs `evofeed serve --migrate`.
        """
        if not self.is_current():
            raise ServiceError(
                "the database lacks the newest tables: run `evofeed serve --migrate` once",
                path=self._url.render_as_string(hide_password=True),
            )

    def close(self) -> None:
        """Close every connection."""
        with self._watching:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
        self.engine.dispose()

    def _make_folder(self) -> None:
        try:
            Path(self._url.database or "").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(f"{error.filename}: {error.strerror}") from None

    def _unusable(self, why: str) -> ServiceError:
        if self.is_sqlite:
            what, hint = "cannot be used", "name a folder of yours in EVOFEED_HOME"
        else:
            what, hint = "does not answer", "start it, or unset EVOFEED_DATABASE_URL"
        reason = why.strip().splitlines()[0]
        shown = self._url.render_as_string(hide_password=True)
        return ServiceError(f"the database {what} ({reason}); {hint}", path=shown)


def newest_tables() -> str:
    """The last migration, by its file's name: each begins with its revision."""
    names = sorted(path.name for path in (_MIGRATIONS / "versions").glob("r[0-9]*.py"))
    return names[-1].partition("_")[0].removeprefix("r")


def _make_tables(connection: Connection) -> None:
    """The newest tables, and the mark by which Alembic knows them; without it, a start is quick."""
    from evofeed.service.database.tables import Base

    Base.metadata.create_all(connection)
    connection.execute(
        text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    )
    connection.execute(
        text("INSERT INTO alembic_version VALUES (:newest)"), {"newest": newest_tables()}
    )


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _prepare_sqlite(engine: Any) -> None:
    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        for pragma in (
            "journal_mode=WAL",
            "busy_timeout=30000",
            "foreign_keys=ON",
            "synchronous=NORMAL",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

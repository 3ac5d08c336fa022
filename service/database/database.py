"""The database: one engine, short transactions, migrations.

SQLite embedded by default, PostgreSQL by URL; the same code runs on both, with
plain synchronous sessions in worker threads.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import URL, Connection, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.orm import Session

from evofeed.base.errors import ServiceError

_DRIVERS: Final = ("sqlite", "postgresql", "postgresql+psycopg")
_MIGRATIONS = Path(__file__).parent / "migrations"
# An outage of the database is noticed within seconds, not after TCP's timeout.
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
_PRAGMAS: Final = ("journal_mode=WAL", "busy_timeout=30000", "foreign_keys=ON",
                   "synchronous=NORMAL")  # fmt: skip


class Database:
    """Sessions on one database.

    With several `workers` a PostgreSQL has connections for all of them together.

    Raises:
        ServiceError: the URL is not supported, or an SQLite file's folder cannot be made.
    """

    def __init__(self, url: str, workers: int = 1) -> None:
        self._url = parse_url(url)
        if self._url.drivername == "postgresql":  # SQLAlchemy's default driver is psycopg2
            self._url = self._url.set(drivername="postgresql+psycopg")
        self.is_sqlite = self._url.drivername == "sqlite"
        if self.is_sqlite:
            self._make_file()
        half = max(2, 10 // workers)
        pool = {"pool_size": half, "max_overflow": half}
        options: dict[str, Any] = {} if self.is_sqlite else _POSTGRES | pool
        self.engine = create_engine(self._url, **options)
        self._locks: dict[str, int | Connection] = {}
        if self.is_sqlite:
            _prepare_sqlite(self.engine)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> Session:
        """A session for reading; nothing is committed."""
        return Session(self.engine)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session whose work is committed at the end, all or nothing; rows stay readable."""
        # IMMEDIATE takes SQLite's write lock at once; a lock taken later fails without waiting.
        engine = self.engine.execution_options(immediate=True)
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session

    def alone(self, session: Session, name: str) -> None:
        """Wait for an exclusive lock on `name`, held until this write transaction ends.

        SQLite has one writer at a time anyway; PostgreSQL takes an advisory lock.
        """
        if not self.is_sqlite:
            session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _key(name)})

    def lock(self, name: str) -> bool:
        """Take a lock without waiting; true if this process holds it, also from before.

        PostgreSQL releases it when its connection ends, the file next to an SQLite database when
        the process ends.
        """
        holder = self._locks.get(name)
        if self.is_sqlite:
            return holder is not None or self._lock_file(name)
        connection = holder if isinstance(holder, Connection) else self.engine.connect()
        try:
            ask = "SELECT :key" if holder is not None else "SELECT pg_try_advisory_lock(:key)"
            acquired = connection.scalar(text(ask), {"key": _key(name)}) is not False
            connection.commit()
        except DatabaseError:
            self._locks.pop(name, None)
            connection.invalidate()
            connection.close()
            raise
        if acquired:
            self._locks[name] = connection
        else:
            connection.close()
        return acquired

    def _lock_file(self, name: str) -> bool:
        file = os.open(f"{self._url.database}.{_key(name):08x}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._locks[name] = file
        return True

    def unlock(self, name: str) -> None:
        """Release a lock."""
        holder = self._locks.pop(name, None)
        if isinstance(holder, Connection):
            with contextlib.suppress(DatabaseError):
                holder.invalidate()  # a session's lock would outlive its return to the pool
                holder.close()
        elif holder is not None:
            os.close(holder)

    def make_current(self) -> None:
        """Bring an embedded database up to date, and refuse a PostgreSQL that is not.

        Raises:
            ServiceError: it does not answer, or needs `evofeed serve --migrate`.
        """
        if self.is_sqlite:
            self.upgrade()
        elif not self.is_current():
            message = "the database lacks the newest tables: run `evofeed serve --migrate` once"
            raise ServiceError(message, path=self._url.render_as_string(hide_password=True))

    def upgrade(self) -> None:
        """Make the tables of a new database, or apply the migrations that are missing."""
        if self.is_current():
            return
        engine = self.engine.execution_options(immediate=True)
        with self._answering(), engine.begin() as connection:
            if not self.is_sqlite:  # two services may start at once
                connection.execute(text("SELECT pg_advisory_xact_lock(4046203)"))
            if inspect(connection).has_table("alembic_version"):
                _migrate(connection)
            else:
                _make_tables(connection)

    def is_current(self) -> bool:
        """True if the database answers and holds the newest tables.

        Raises:
            ServiceError: the database does not answer.
        """
        with self._answering(), self.engine.connect() as connection:
            if not inspect(connection).has_table("alembic_version"):
                return False
            version = connection.scalar(text("SELECT version_num FROM alembic_version"))
            return bool(version == newest_tables())

    def close(self) -> None:
        """Close every connection."""
        for name in list(self._locks):
            self.unlock(name)
        self.engine.dispose()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            raise self._unusable(str(error.orig or "no answer")) from None

    def _make_file(self) -> None:
        """The file for its owner alone, for any umask, and in any folder.

        SQLite gives its journals the rights of the file.
        """
        path = Path(self._url.database or "")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.is_dir():  # its permissions stay as they are
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            if not path.exists():  # closing an existing one drops SQLite's locks on it
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            if path.stat().st_mode & 0o077 and path.stat().st_uid == os.getuid():
                path.chmod(0o600)
        except OSError as error:
            raise self._unusable(f"{error.filename}: {error.strerror}") from None

    def _unusable(self, why: str) -> ServiceError:
        if self.is_sqlite:
            message, hint = "cannot be used", "name a folder of yours in EVOFEED_HOME"
        else:
            message, hint = "does not answer", "start it, or unset EVOFEED_DATABASE_URL"
        first = why.strip().splitlines()[0]
        shown = self._url.render_as_string(hide_password=True)
        return ServiceError(f"the database {message} ({first}); {hint}", path=shown)


def parse_url(text: str) -> URL:
    """The URL of an SQLite file or a PostgreSQL database.

    Raises:
        ServiceError: it is neither; its password must not be shown, so nothing of it is.
    """
    with contextlib.suppress(
        ArgumentError, ValueError
    ):  # the latter for a port that is not a number
        url = make_url(text)
        # In memory each thread would get a separate empty database.
        in_memory = url.drivername == "sqlite" and url.database in (None, "", ":memory:")
        if url.drivername in _DRIVERS and not in_memory:
            return url
    raise ServiceError(
        "EVOFEED_DATABASE_URL is not a database URL; use sqlite:///FILE or "
        "postgresql://USER:PASSWORD@HOST/NAME"
    )


def newest_tables() -> str:
    """The last migration, by its file's name: each begins with its revision."""
    names = sorted(path.name for path in (_MIGRATIONS / "versions").glob("r[0-9]*.py"))
    return names[-1].partition("_")[0].removeprefix("r")


def _key(name: str) -> int:
    return zlib.crc32(f"evofeed {name}".encode())


def _make_tables(connection: Connection) -> None:
    """Create the newest tables and Alembic's version mark, which is faster than all migrations."""
    from evofeed.service.database.tables import Base

    Base.metadata.create_all(connection)
    version = "alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
    connection.execute(text(f"CREATE TABLE {version}"))
    mark = text("INSERT INTO alembic_version VALUES (:newest)")
    connection.execute(mark, {"newest": newest_tables()})


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
        connection.isolation_level = None  # BEGIN is emitted below
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

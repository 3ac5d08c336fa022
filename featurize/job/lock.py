"""One driver per job: a lock that is released when its holder dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from evofeed.base.errors import JobError
from evofeed.featurize.job.ledger import Ledger

KeepWaiting = Callable[[float], bool]
"""True to keep waiting for another driver's lock, by the seconds waited so far."""
TryLock = Callable[[], bool]
"""Acquires a lock without waiting; False if another process holds it."""


def wait_briefly(seconds: float) -> bool:
    """True for 5 s: workers of a killed driver may outlive it for a moment."""
    return seconds < 5.0


@contextmanager
def driver_lock(ledger: Ledger, job_id: str, waits: KeepWaiting = wait_briefly) -> Iterator[None]:
    """Hold the lock of a job; while another driver holds it, wait as long as `waits` is true.

    Raises:
        JobError: another driver holds it.
    """
    is_file = ledger.engine.dialect.name == "sqlite"
    path = f"{ledger.engine.url.database}.{job_id[:16]}.lock" if is_file else ledger.location
    with file_lock(Path(path)) if is_file else _advisory_lock(ledger, job_id) as try_lock:
        began = time.monotonic()
        while not try_lock():
            if not waits(time.monotonic() - began):
                raise JobError(
                    f"job {job_id[:12]} is being run by another process: watch it "
                    "(`evofeed jobs status`), or cancel it",
                    path=path,
                )
            time.sleep(0.1)
        yield


def is_driven(ledger: Ledger, job_id: str) -> bool:
    """True if a driver holds the lock of a job now."""
    try:
        with driver_lock(ledger, job_id, lambda _: False):
            return False
    except JobError:
        return True


@contextmanager
def file_lock(path: Path) -> Iterator[TryLock]:
    """A POSIX lock: unlike flock's it is not inherited by forked workers. The file stays: removing
    it would let two drivers lock two files of one name."""
    with path.open("a") as file:

        def try_lock() -> bool:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True

        yield try_lock


@contextmanager
def _advisory_lock(ledger: Ledger, job_id: str) -> Iterator[TryLock]:
    """PostgreSQL's session lock, which ends with the connection."""
    key = int(job_id[:15], 16)
    with ledger.engine.connect() as connection:

        def try_lock() -> bool:
            acquired = connection.execute(sa.select(sa.func.pg_try_advisory_lock(key))).scalar()
            connection.commit()
            return bool(acquired)

        try:
            yield try_lock
        finally:
            connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
            connection.commit()

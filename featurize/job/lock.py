"""One driver per job: a lock that the death of its holder opens."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from evofeed.base.errors import JobError
from evofeed.featurize.job.ledger import Ledger

Waits = Callable[[float], bool]
"""Whether to go on waiting for another driver to let go, by the seconds that it has taken."""


def a_while(seconds: float) -> bool:
    """Workers of a killed driver may outlive it for a moment."""
    return seconds < 5.0


@contextmanager
def driving(ledger: Ledger, job_id: str, waits: Waits = a_while) -> Iterator[None]:
    """Hold the right to drive a job.

    Args:
        ledger: where the job is.
        job_id: the job.
        waits: asked while another driver has it.

    Raises:
        JobError: another driver has it.
    """
    hold = _file_lock if ledger.engine.dialect.name == "sqlite" else _advisory_lock
    with hold(ledger, job_id, waits):
        yield


def is_driven(ledger: Ledger, job_id: str) -> bool:
    """Whether a driver holds the job at this moment."""
    hold = _file_lock if ledger.engine.dialect.name == "sqlite" else _advisory_lock
    try:
        with hold(ledger, job_id, lambda _: False):
            return False
    except JobError:
        return True


@contextmanager
def _file_lock(ledger: Ledger, job_id: str, waits: Waits) -> Iterator[None]:
    path = Path(f"{ledger.engine.url.database}.{job_id[:16]}.lock")
    with path.open("a") as file:
        began = time.monotonic()
        while True:
            try:  # a POSIX lock: unlike flock's it is not inherited by forked workers
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not waits(time.monotonic() - began):
                    raise _taken(job_id, str(path)) from None
                time.sleep(0.1)
        yield
    # The file stays: removing it would let two drivers lock two files of one name.


@contextmanager
def _advisory_lock(ledger: Ledger, job_id: str, waits: Waits) -> Iterator[None]:
    """PostgreSQL's session lock: it goes with the connection."""
    key = int(job_id[:15], 16)
    with ledger.engine.connect() as connection:
        began = time.monotonic()
        while not connection.execute(sa.select(sa.func.pg_try_advisory_lock(key))).scalar():
            connection.commit()
            if not waits(time.monotonic() - began):
                raise _taken(job_id, ledger.place)
            time.sleep(0.1)
        connection.commit()
        try:
            yield
        finally:
            connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
            connection.commit()


def _taken(job_id: str, where: str) -> JobError:
    return JobError(
        f"job {job_id[:12]} is being run by another process: watch it "
        "(`evofeed jobs status`), or cancel it",
        path=where,
    )

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
Take = Callable[[], bool]
"""Takes a lock, if nobody has it."""


def a_while(seconds: float) -> bool:
    """Workers of a killed driver may outlive it for a moment."""
    return seconds < 5.0


@contextmanager
def driving(ledger: Ledger, job_id: str, waits: Waits = a_while) -> Iterator[None]:
    """Hold the right to drive a job; `waits` is asked while another driver has it.

    Raises:
        JobError: another driver has it.
    """
    is_file = ledger.engine.dialect.name == "sqlite"
    where = f"{ledger.engine.url.database}.{job_id[:16]}.lock" if is_file else ledger.place
    with file_lock(Path(where)) if is_file else _advisory_lock(ledger, job_id) as take:
        began = time.monotonic()
        while not take():
            if not waits(time.monotonic() - began):
                raise JobError(
                    f"job {job_id[:12]} is being run by another process: watch it "
                    "(`evofeed jobs status`), or cancel it",
                    path=where,
                )
            time.sleep(0.1)
        yield


def is_driven(ledger: Ledger, job_id: str) -> bool:
    """Whether a driver holds the job at this moment."""
    try:
        with driving(ledger, job_id, lambda _: False):
            return False
    except JobError:
        return True


@contextmanager
def file_lock(path: Path) -> Iterator[Take]:
    """A POSIX lock: unlike flock's it is not inherited by forked workers. The file stays: removing
    it would let two drivers lock two files of one name."""
    with path.open("a") as file:

        def take() -> bool:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True

        yield take


@contextmanager
def _advisory_lock(ledger: Ledger, job_id: str) -> Iterator[Take]:
    """PostgreSQL's session lock: it goes with the connection."""
    key = int(job_id[:15], 16)
    with ledger.engine.connect() as connection:

        def take() -> bool:
            taken = connection.execute(sa.select(sa.func.pg_try_advisory_lock(key))).scalar()
            connection.commit()
            return bool(taken)

        try:
            yield take
        finally:
            connection.execute(sa.select(sa.func.pg_advisory_unlock(key)))
            connection.commit()

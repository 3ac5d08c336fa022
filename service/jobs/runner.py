"""The child process of a job's attempt: `python -m evofeed.service.jobs.runner JOB_ID ATTEMPT`.

The only thing a job ever starts. It takes an id and a number, looks the rest up in the
database, and reports back there; nothing a client sent is on a command line. Should it sleep for
so long that another attempt begins, that one waits until it wakes, hears of it and lets go.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from evofeed.base.errors import EvofeedError
from evofeed.featurize import search
from evofeed.featurize.job import (
    Entries,
    JobHost,
    JobProgress,
    broken_entries,
    note_entries,
    run_job,
)
from evofeed.service.access.auth import holder_of, roots_of
from evofeed.service.access.places import input_limits
from evofeed.service.database.database import Database
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs.config import build
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.refs import Refs
from evofeed.service.settings import ServiceSettings, load_settings
from evofeed.service.snapshots.catalog import Catalog
from evofeed.store.inner import Storage

_log = logging.getLogger("evofeed.service.runner")
_BEAT_SECONDS = 2.0
_LONG_SECONDS = 10.0  # workers of a killed process have exited by then
_BATCH = 1000  # chains recorded in one heartbeat
_RESULT = (
    "snapshot", "num_chains", "num_good", "num_broken", "num_shards", "num_bytes",
    "lost_workers", "seconds", "chains_per_second",
)  # fmt: skip


def main(job_id: str, attempt: int | None = None) -> int:
    """Run a job to its end; 0 if it ended, failed or not, else `jobs.AWAY` or 1."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    _log.setLevel(logging.INFO)
    settings = load_settings()
    database = Database(settings.url)
    queue = JobQueue(database, settings.max_queued_jobs)
    pulse = _Pulse(queue, job_id, attempt)
    # The service stops; the next one continues the job.
    before = signal.signal(signal.SIGTERM, lambda *_: pulse.stop_for(jobs.QUEUED))
    try:
        return _run_and_say(database, settings, queue, pulse, job_id)
    except Exception as error:
        if not _is_away(error):
            raise
        _log.warning("the database is away: %s", str(error).splitlines()[0])
        return jobs.AWAY
    finally:
        signal.signal(signal.SIGTERM, before)
        database.close()


def _run_and_say(
    database: Database, settings: ServiceSettings, queue: JobQueue, pulse: _Pulse, job_id: str
) -> int:
    try:
        _run(database, settings, queue, pulse, job_id)
    except KeyboardInterrupt:
        _log.info("stopped: %s", pulse.stop_state)
        pulse.end(pulse.stop_state)
    except Exception as error:
        if _is_away(error):
            raise
        ours, message = isinstance(error, EvofeedError), f"{type(error).__name__}: {error}"[:2000]
        _log.error("%s", error if ours else "unexpected", exc_info=None if ours else error)
        pulse.end(jobs.FAILED, error=str(error) if ours else message, result=pulse.made)
        return 0 if ours else 1
    return 0


def _is_away(error: BaseException | None) -> bool:
    """True if PostgreSQL stopped or cannot be reached, false for an error it reports."""
    while error is not None:
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            return (error.sqlstate or "08")[:2] in ("08", "57")  # no connection, shut down
        error = error.__cause__
    return False


def _run(
    database: Database, settings: ServiceSettings, queue: JobQueue, pulse: _Pulse, job_id: str
) -> None:
    job, dataset = queue.get(job_id)
    ref, options = job.spec["ref"], job.spec["options"]
    config, crop = build(job.spec)
    _log.info("attempt %d: %s into %s", job.attempts, job.spec["input_uri"], dataset.name)

    def move(storage: Storage, name: str, digest: str, expect: str | None) -> object:
        pulse.made = {"snapshot": digest}
        _log.info("snapshot %s is written", digest)
        if ref is None:
            return None
        mover = holder_of(database, job.charged_to)
        moved = Refs(Catalog(database)).move(
            dataset.name, name, digest, expect, mover, job_id=job_id, message=job.message
        )
        _log.info("ref %s is moved", name)
        return moved

    limits = input_limits(settings, roots_of(database, job.charged_to))
    ray_address = settings.ray_address if options["executor"] != "local" else ""
    input_uri, missing = job.spec["input_uri"], list[dict[str, Any]]()
    with pulse:
        if recipe := job.spec.get("recipe"):
            roles = {role.name for role in search.RECIPES[recipe].roles}
            paths = settings.job_databases.items()
            chosen = [search.Database(*pair) for pair in paths if pair[0] in roles or not roles]
            databases, how = search.cook(recipe, chosen)
            out, cache = str(settings.home / "searches" / job_id), str(settings.searched)
            places = search.SearchOptions(
                executor=options["executor"], workers=options["workers"],
                ray_address=ray_address, cache_dir=cache,
            )  # fmt: skip
            searched = search.search_input(
                input_uri, out, databases, limits=limits, config=how, options=places,
                progress=lambda _: pulse.progress(),
            )  # fmt: skip
            missing = [{**chain, "path": None, "line": None} for chain in searched.broken]
            input_uri, limits = out, limits and [[*group, out, cache] for group in limits]
        host = JobHost(
            owner=job_id, retry=job.retry, report_chains=pulse.report_chains, move=move,
            waits=pulse.waits, limits=limits,
        )  # fmt: skip
        report = run_job(
            input_uri, dataset.place, config=config, crop=crop,
            progress=pulse.progress, ledger="" if database.is_sqlite else settings.url,
            ref=ref or f"job-{job_id}", host=host, ray_address=ray_address, **options,
        )  # fmt: skip
    _log.info("%s: %d good, %d broken", report.state, report.num_good, report.num_broken)
    states = {"published": jobs.SUCCEEDED, "cancelled": jobs.CANCELLED}
    result = {name: getattr(report, name) for name in _RESULT} | {"resumed_units": report.resumed}
    state = states.get(report.state, jobs.FAILED)
    result["num_broken"] += len(missing)
    chains = broken_entries([*missing, *report.broken]) + note_entries(report.notes)
    pulse.end(state, error=report.message, result=result, chains=chains)


class _Pulse:
    """Sends heartbeats to the queue, and stops the driver on request.

    The heartbeat is a thread, since one chain may keep the driver busy for long;
    the driver itself is stopped where it reports progress, in its own thread.
    """

    def __init__(self, queue: JobQueue, job_id: str, attempt: int | None = None) -> None:
        self._queue, self._job_id, self._attempt = queue, job_id, attempt
        self._waits = False
        self._parent = os.getppid()
        self._latest: dict[str, Any] | None = None
        self._entries: list[Mapping[str, Any]] = []
        self.made: dict[str, Any] = {}
        """The job's result so far, kept if it fails later."""
        self._done = threading.Event()
        self._stop = ""
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    @property
    def stop_state(self) -> str:
        """The state to end in after an interruption."""
        return self._stop or jobs.QUEUED

    def stop_for(self, state: str) -> None:
        """Stop the driver at its next progress report; the job ends in `state`."""
        self._stop = self._stop or state

    def progress(self, progress: JobProgress | None = None) -> None:
        """Called by the driver, or a search before it, about twice a second."""
        self._latest = dataclasses.asdict(progress) if progress else self._latest
        if self._stop:
            raise KeyboardInterrupt

    def report_chains(self, entries: Entries) -> None:
        """Called by the driver with broken chains and notes as they occur."""
        for entry in entries:
            location = ":".join(str(word) for word in (entry["path"], entry["line"]) if word)
            words = dict.fromkeys(word for word in (entry["chain_id"], location) if word)
            _log.info("%s %s: %s", entry["kind"], ": ".join(words), entry["message"])
        self._entries += entries

    def waits(self, seconds: float) -> bool:
        """Called while another process, of a silent earlier attempt, still drives the job."""
        if self._stop:
            raise KeyboardInterrupt
        if seconds >= _LONG_SECONDS and not self._waits:
            self._waits = True
            _log.warning("the process of an earlier attempt sleeps: waiting until it lets go")
        return True

    def end(self, state: str, **rest: Any) -> None:
        """Record the end of this attempt: see `JobQueue.end`."""
        self._queue.end(self._job_id, state, attempt=self._attempt, **rest)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._done.wait(_BEAT_SECONDS / 4):
            entries = self._entries[:_BATCH]
            with contextlib.suppress(SQLAlchemyError):  # busy or down: the next beat retries
                stop = self._queue.heartbeat(
                    self._job_id, self._latest, entries, attempt=self._attempt
                )
                del self._entries[: len(entries)]
                if stop:
                    self.stop_for(jobs.CANCELLED)
            if os.getppid() != self._parent:  # the service died: the next one takes over
                self.stop_for(jobs.QUEUED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

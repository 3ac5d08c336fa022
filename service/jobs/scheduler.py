"""Starts queued jobs as child processes, a few at a time, and records their ends."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from evofeed.service.database.tables import JobRow
from evofeed.service.jobs import queue as jobs
from evofeed.service.jobs.queue import JobQueue
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings

_log = logging.getLogger("evofeed.service")
_TICK = 0.5
_STOP_SECONDS = 20.0
_LOG_BYTES = 65_536
_PRUNE_SECONDS = 3600.0
_Run = tuple[str, int]  # a job and the number of its run
_TOLD_TO_STOP = {-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}  # before it handled signals


class Scheduler:
    """A thread that keeps at most `max_jobs` children running."""

    def __init__(self, queue: JobQueue, settings: ServiceSettings) -> None:
        self._queue, self._settings = queue, settings
        self._pruned = -_PRUNE_SECONDS
        self._children: dict[_Run, _Child] = {}
        self._ended: dict[_Run, tuple[int, bool]] = {}  # ends not yet recorded
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evofeed-jobs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._settings.max_jobs:
            self._thread.start()

    def wake(self) -> None:
        """Check the queue now: a job was submitted."""
        self._wake.set()

    def close(self) -> None:
        """Interrupt the children and wait for them; their jobs are queued again."""
        self._stop.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._children:
            _log.warning(
                "waiting up to %.0f s for running jobs to stop: %s; the next start continues with "
                "them. Ctrl-C or SIGTERM again does not wait",
                _STOP_SECONDS,
                ", ".join(job_id for job_id, _ in self._children),
            )
        end = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            child.process.terminate()
        for attempt, child in self._children.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, end - time.monotonic()))
            self._ended[attempt] = child.see_off()
        self._children.clear()
        try:
            self._reap()
        except DBAPIError as error:  # the next start requeues them by their missing heartbeats
            _log.error("how jobs ended cannot be written, the database is away: %s", error.orig)

    def log(self, job: JobRow) -> str:
        """The last 64 KiB of the log of a job's processes on this machine."""
        try:
            with self._log_path(job.id).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return job.log

    def _log_path(self, job_id: str) -> Path:
        return self._settings.home / "jobs" / f"{job_id}.log"

    def _run(self) -> None:
        away = False
        while not self._stop.is_set():
            try:
                self._reap()
                while not self._stop.is_set() and len(self._children) < self._settings.max_jobs:
                    job_id = self._queue.claim(self._settings.max_jobs)
                    if job_id is None:
                        break
                    run = (job_id, self._queue.get(job_id)[0].attempts)
                    self._children[run] = self._spawn(*run)
                self._prune()
                away = False
            except DBAPIError as error:
                if not away:  # once, not at every tick of an outage
                    _log.error("the job queue waits for the database: %s", error.orig)
                away = True
            except Exception:  # this thread must survive any error
                _log.exception("the job queue cannot be served now; trying again")
            self._wake.wait(_TICK)
            self._wake.clear()

    def _prune(self) -> None:
        """Delete expired jobs and audit lines, once an hour."""
        if time.monotonic() < self._pruned + _PRUNE_SECONDS:
            return
        self._pruned = time.monotonic()
        if self._settings.audit_days:
            self._queue.prune_audit(time.time() - self._settings.audit_days * 86_400)
        if self._settings.keep_days:
            before = time.time() - self._settings.keep_days * 86_400
            self._queue.prune(before)
            for path in (self._settings.home / "jobs").glob("*.log"):
                if path.stat().st_mtime < before:
                    path.unlink(missing_ok=True)

    def _spawn(self, job_id: str, attempt: int) -> _Child:
        log = self._log_path(job_id)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = os.environ | {  # the URL may hold a password: not on the command line
            "EVOFEED_DATABASE_URL": self._settings.url,
            "EVOFEED_HOME": str(self._settings.home),
            "EVOFEED_RAY_ADDRESS": self._settings.ray_address,
            "EVOFEED_AUTH": self._settings.auth,
            "EVOFEED_INPUT_ROOTS": json.dumps(self._settings.input_roots),
            "EVOFEED_JOB_DATABASES": json.dumps(self._settings.job_databases),
            "EVOFEED_MSA_CACHE": str(self._settings.searched),
        }
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "evofeed.service.jobs.runner", job_id, str(attempt)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches it through this process
            )
        return _Child(process, _memory_kills())

    def _reap(self) -> None:
        """Record the ends of children; retried later if the database is down."""
        for attempt, child in list(self._children.items()):
            if child.process.poll() is not None:
                del self._children[attempt]
                self._ended[attempt] = child.see_off()
        for attempt, end in list(self._ended.items()):
            self._settle(*attempt, *end)
            del self._ended[attempt]

    def _settle(self, job_id: str, attempt: int, code: int, by_others: bool) -> None:
        """Store the log of a job's process, and requeue a job that it did not end."""
        try:
            job, _ = self._queue.get(job_id)
        except Problem:
            _log.warning("job %s was removed while it ran", job_id)
            return
        if job.attempts != attempt:  # requeued and restarted while the database was down
            return
        self._queue.keep_log(job_id, self.log(job))
        if self._stop.is_set():
            self._queue.end(job_id, jobs.QUEUED)
        elif by_others:
            self._queue.end(job_id, jobs.QUEUED, error="somebody ended its process; queued again")
        elif code == jobs.AWAY:
            self._queue.end(job_id, jobs.QUEUED, error="its database was away; queued again")
        else:
            self._queue.died(job_id, f"its process ended with {code}")


@dataclass(frozen=True, slots=True)
class _Child:
    """The process of an attempt, with the count of `memory_kills` at its start."""

    process: subprocess.Popen[bytes]
    memory_kills: int | None

    def see_off(self) -> tuple[int, bool]:
        """Its exit code, and true if it was killed from outside; its children are killed too."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: itself and its children
        code = self.process.wait()
        # The kernel's out-of-memory killer is the other source of SIGKILL, by the job's fault.
        spared = self.memory_kills is not None and self.memory_kills == _memory_kills()
        return code, code in _TOLD_TO_STOP or (code == -signal.SIGKILL and spared)


def _memory_kills() -> int | None:
    """Number of processes killed by the kernel's out-of-memory killer; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None

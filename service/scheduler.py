"""Starts queued jobs as child processes, a few at a time, and sees them off."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from evofeed.service import jobs
from evofeed.service.jobs import JobQueue
from evofeed.service.problems import Problem
from evofeed.service.settings import ServiceSettings
from evofeed.service.uploading import collect_stale

_log = logging.getLogger("evofeed.service")
_TICK = 0.5
_STOP_SECONDS = 20.0
_LOG_BYTES = 65_536
_PRUNE_SECONDS = 3600.0
_MAX_ATTEMPTS = 5  # a job whose process dies this often is not started again by itself


class Scheduler:
    """A thread that keeps at most `max_jobs` children running.

    Args:
        queue: the jobs.
        settings: of the service; children get the same.
    """

    def __init__(self, queue: JobQueue, settings: ServiceSettings) -> None:
        self._queue, self._settings = queue, settings
        self._pruned = -_PRUNE_SECONDS
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evofeed-jobs", daemon=True)

    def start(self) -> None:
        """Begin to work off the queue."""
        if self._settings.max_jobs:
            self._thread.start()

    def wake(self) -> None:
        """Look at the queue now: something was submitted."""
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
                ", ".join(self._children),
            )
        end = time.monotonic() + _STOP_SECONDS
        for child in self._children.values():
            child.terminate()
        for job_id, child in self._children.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end - time.monotonic()))
            self._settle(job_id, child)
        self._children.clear()

    def log(self, job_id: str, attempt: int) -> str | None:
        """The last 64 KiB that an attempt's process wrote; None if it ran elsewhere."""
        try:
            with self._log_path(job_id, attempt).open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return None

    def _log_path(self, job_id: str, attempt: int) -> Path:
        return self._settings.home / "jobs" / f"{job_id}.{attempt}.log"

    def _run(self) -> None:
        away = False
        while not self._stop.is_set():
            try:
                self._reap()
                while not self._stop.is_set() and len(self._children) < self._settings.max_jobs:
                    job_id = self._queue.claim(self._settings.max_jobs)
                    if job_id is None:
                        break
                    self._children[job_id] = self._spawn(job_id)
                self._prune()
                away = False
            except DBAPIError as error:
                if not away:  # once, not twice a second for as long as it is away
                    _log.error("the job queue waits for the database: %s", error.orig)
                away = True
            except Exception:  # whatever it was, this thread must not die of it
                _log.exception("the job queue cannot be served now; trying again")
            self._wake.wait(_TICK)
            self._wake.clear()

    def _prune(self) -> None:
        """Once an hour: what is older than it is kept, and what dead uploads left behind."""
        if time.monotonic() < self._pruned + _PRUNE_SECONDS:
            return
        self._pruned = time.monotonic()
        collect_stale(self._settings.home)
        if self._settings.audit_days:
            self._queue.prune_audit(time.time() - self._settings.audit_days * 86_400)
        if self._settings.keep_days:
            self._prune_jobs(time.time() - self._settings.keep_days * 86_400)

    def _prune_jobs(self, before: float) -> None:
        self._queue.prune(before)
        for path in (self._settings.home / "jobs").glob("*.log"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def _spawn(self, job_id: str) -> subprocess.Popen[bytes]:
        log = self._log_path(job_id, self._queue.get(job_id)[0].attempts)
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = os.environ | {  # the URL may hold a password: not on the command line
            "EVOFEED_DATABASE_URL": self._settings.url,
            "EVOFEED_HOME": str(self._settings.home),
            "EVOFEED_RAY_ADDRESS": self._settings.ray_address,
        }
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "evofeed.service.runner", job_id],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
            )

    def _reap(self) -> None:
        for job_id, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[job_id]
                self._settle(job_id, child)

    def _settle(self, job_id: str, child: subprocess.Popen[bytes]) -> None:
        """Whatever the child left running goes with it; a job it did not end is put right."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own session, so only its own processes
        code = child.wait()
        try:
            job, _ = self._queue.get(job_id)
        except Problem:
            _log.warning("job %s was removed while it ran", job_id)
            return
        if log := self.log(job_id, job.attempts):
            self._queue.keep_log(job_id, log)
        if job.state == jobs.CANCELLING:
            self._queue.end(job_id, jobs.CANCELLED)
        elif job.state == jobs.RUNNING and (self._stop.is_set() or job.attempts < _MAX_ATTEMPTS):
            self._queue.end(
                job_id, jobs.QUEUED, error=f"its process ended with {code}; queued again"
            )
        elif job.state == jobs.RUNNING:
            why = f"its process ended with {code}, {job.attempts} times; see the job's log"
            self._queue.end(job_id, jobs.FAILED, error=why)

"""A worker process and its watcher.

A poisonous chain (a crash in native code, a hang, memory without end) kills the
worker, never its watcher. The worker sends the id of each chain before it reads
the chain, so the watcher knows which one to blame. Worker and watcher talk over
a socket pair; a worker dies with its watcher, and the tools that it started die
with its process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import connection as pipes
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from evofeed.base.errors import EvofeedError, JobError

if TYPE_CHECKING:
    from evofeed.featurize.job.work import Task, UnitOutput

DEADLINE_KILL = "deadline"
_PR_SET_PDEATHSIG = 1
_TICK = 0.25  # seconds between checks of the deadline
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
_MAIN = "import sys; from evofeed.featurize.job import worker; worker.main(*map(int, sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class UnitLost:
    """A worker died over a unit.

    Attributes:
        chain_id: the current chain of the worker: "" if none, None if unknown.
        cause: `deadline`, `signal NAME` or `exit CODE`, or the name of Ray's error.
    """

    unit_id: str
    chain_id: str | None
    cause: str


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """A unit failed and no chain is to blame, such as on a full disk."""

    unit_id: str
    error: EvofeedError


def serve(connection: Connection, watcher: int) -> None:
    """Receive tasks and send chain ids and pickled outcomes, until the other end closes."""
    exit_with_parent(watcher)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)  # tools started here can be killed together
    os.dup2(2, 1)  # standard output is the report's, whatever a parser prints
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the watcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTS)
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: Task = connection.recv()
            connection.send(pickle.dumps(_outcome(task, connection)))


def _outcome(task: Task, connection: Connection) -> UnitOutput | UnitFailed:
    try:
        return task.work(connection.send)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except EvofeedError as error:
        return UnitFailed(task.unit_id, error)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"{reason}; fix that and run it again, finished work is kept"
        return UnitFailed(task.unit_id, JobError(message))


def exit_with_parent(watcher: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:  # it died before the call
        os._exit(1)


def main(descriptor: int, watcher: int) -> None:
    """Entry point of a worker that was started as a fresh interpreter."""
    serve(Connection(descriptor), watcher)


class Worker:
    """A worker process, as its watcher sees it: start a unit, receive the outcome."""

    def __init__(self, fresh: bool = False) -> None:
        local, remote = socket.socketpair()
        # A fork is ready at once, but only a process without threads may fork safely. The
        # S3 client has threads that Python does not list, and waits for them forever in a
        # fork: a worker that needs the client must be `fresh`.
        self._is_fork = threading.active_count() == 1 and not fresh
        self._popen: subprocess.Popen[bytes] | None = None
        with remote:
            self.pid = _fork(local, remote) if self._is_fork else self._spawn(remote)
        self.connection = Connection(local.detach())
        self.unit_id = ""
        self.chain_id = ""
        self._started_at = 0.0
        self._timed_out = False

    def _spawn(self, remote: socket.socket) -> int:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(remote.fileno()), str(os.getpid())],
            pass_fds=[remote.fileno()],
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
        return self._popen.pid

    @property
    def is_idle(self) -> bool:
        """True if it waits for a unit."""
        return not self.unit_id

    def start(self, unit_id: str, task: bytes) -> None:
        """Send a pickled `Task`; the worker must be idle."""
        assert not self.unit_id
        self.unit_id, self.chain_id, self._started_at = unit_id, "", time.monotonic()
        with contextlib.suppress(OSError):  # it died while idle: `receive_outcome` will notice
            self.connection.send_bytes(task)

    def receive_outcome(self) -> bytes | UnitLost | None:
        """Receive one message, waiting for it: None if it is a chain id, else the outcome.

        Returns:
            A pickled `UnitOutput` or `UnitFailed`, or the loss of the worker over the unit.
        """
        assert self.unit_id
        try:
            message: Any = self.connection.recv()
        except (EOFError, OSError):
            return self._reap_lost()
        if isinstance(message, str):
            self.chain_id, self._started_at = message, time.monotonic()
            return None
        self.unit_id = self.chain_id = ""
        outcome: bytes = message
        return outcome

    def enforce_deadline(self, deadline: float) -> None:
        """Kill the worker if its current chain has taken longer than `deadline` seconds."""
        is_overdue = self.chain_id and time.monotonic() - self._started_at > deadline
        if is_overdue and not self.connection.poll():  # no message that was not yet received
            self._timed_out = True
            self.kill()

    def _reap_lost(self) -> UnitLost:
        status = self._reap()
        if self._timed_out:
            cause = DEADLINE_KILL
        elif os.WIFSIGNALED(status):
            cause = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            cause = f"exit {os.waitstatus_to_exitcode(status)}"
        lost = UnitLost(self.unit_id, self.chain_id, cause)
        self.unit_id = ""
        return lost

    def kill(self) -> None:
        """Kill the worker and everything that it started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the worker, wait for its end and close the connection."""
        if self.pid:
            self.kill()
            self._reap()
        self.connection.close()

    def _reap(self) -> int:
        self.kill()  # the connection is closed: end the process and its tools, too
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            status = 0
        if self._popen is not None:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.pid = 0
        return status


def run_unit(worker: Worker, unit_id: str, task: bytes, deadline: float) -> bytes | UnitLost:
    """The outcome of one unit on one worker, as `Worker.receive_outcome` returns it."""
    worker.start(unit_id, task)
    while True:
        if pipes.wait([worker.connection], _TICK):
            outcome = worker.receive_outcome()
            if outcome is not None:
                return outcome
        worker.enforce_deadline(deadline)


_worker: Worker | None = None  # of the Ray worker that this process is


def run_unit_on_ray(unit_id: str, task: bytes, deadline: float) -> bytes | UnitLost:
    """The function that Ray calls: run one unit in a worker process that this one watches.

    Tasks and outcomes are bytes, so that Ray's workers do not load the modules of a unit.
    """
    global _worker
    if _worker is None or not _worker.pid:
        _worker = Worker(fresh=True)
    return run_unit(_worker, unit_id, task, deadline)


def child_environment() -> dict[str, str]:
    """Environment of a fresh interpreter with the module path of this one."""
    path = os.pathsep.join(part for part in sys.path if part)
    return {**os.environ, "PYTHONPATH": path}


def _fork(local: socket.socket, remote: socket.socket) -> int:
    watcher = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    # Python drops what a signal handler raises in a callback of `fork`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    code = 1
    try:
        local.close()
        serve(Connection(remote.detach()), watcher)
        code = 0
    finally:
        os._exit(code)  # no exit handlers: they belong to the watcher
    raise AssertionError("unreachable")

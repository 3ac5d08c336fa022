"""A worker process and the one who watches it.

Poison (a crash in native code, a hang, memory without end) takes down the
worker, never its watcher. The worker says which chain it takes in hand before
touching it, so the watcher knows whom to blame. Worker and watcher talk over a
socket pair; a worker dies with its watcher, and whatever tools it started die
with its process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from evofeed.errors import EvofeedError, JobError
from evofeed.featurize.job.work import Task, UnitOutput, run_unit

DEADLINE_KILL = "deadline"
_PR_SET_PDEATHSIG = 1
_MAIN = "import sys; from evofeed.featurize.job import worker; worker.main(*map(int, sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class UnitLost:
    """A worker died over a unit: the chain it had in hand ("" if none), and of what."""

    unit_id: str
    chain_id: str
    cause: str
    """`deadline`, `signal NAME` or `exit CODE`, or how a remote worker was lost."""


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """A unit could not be done for a reason that is no chain's fault, such as a full disk."""

    unit_id: str
    error: EvofeedError


Outcome = UnitOutput | UnitLost | UnitFailed


def serve(connection: Connection, watcher: int) -> None:
    """The worker's life: unit tasks in, breadcrumbs and results out, until the other end closes."""
    _die_with(watcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the watcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: Task = connection.recv()
            connection.send(_outcome(task, connection))


def _outcome(task: Task, connection: Connection) -> UnitOutput | UnitFailed:
    try:
        return run_unit(task, connection.send)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except EvofeedError as error:
        return UnitFailed(task.unit_id, error)
    except Exception as error:
        return UnitFailed(task.unit_id, JobError(f"{type(error).__name__}: {error}"))


def _die_with(watcher: int) -> None:
    """Have the kernel kill this process when the one that started it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:  # it died before we asked
        os._exit(1)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)  # tools started here can be killed together


def main(descriptor: int, watcher: int) -> None:
    """Entry of a worker that was started as a fresh interpreter."""
    serve(Connection(descriptor), watcher)


class Worker:
    """A worker process, seen from its watcher: give it a unit, hear what became of it."""

    def __init__(self, fresh: bool = False) -> None:
        mine, theirs = socket.socketpair()
        # A fork is ready at once, but only a process without threads may fork safely. The
        # S3 client has some that Python does not know of, and in a fork waits for them for
        # ever: a worker that needs it must be `fresh`.
        self._fork = threading.active_count() == 1 and not fresh
        self._popen: subprocess.Popen[bytes] | None = None
        with theirs:
            self.pid = _fork(mine, theirs) if self._fork else self._spawn(theirs)
        self.connection = Connection(mine.detach())
        self.task: Task | None = None
        self.chain_id = ""
        self._since = 0.0
        self._late = False

    def _spawn(self, theirs: socket.socket) -> int:
        path = os.pathsep.join(part for part in sys.path if part)
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        return self._popen.pid

    @property
    def idle(self) -> bool:
        """Whether it waits for a unit."""
        return self.task is None

    def start(self, task: Task) -> None:
        """Hand it a unit; it must be idle."""
        assert self.task is None
        self.task, self.chain_id, self._since = task, "", time.monotonic()
        with contextlib.suppress(OSError):  # it died while idle: `hear` will notice
            self.connection.send(task)

    def hear(self) -> Outcome | None:
        """Take in what it has said; the outcome if the unit is over. Blocks while it is silent."""
        assert self.task is not None
        try:
            said: Any = self.connection.recv()
        except (EOFError, OSError):
            return self._lost()
        if isinstance(said, str):
            self.chain_id, self._since = said, time.monotonic()
            return None
        self.task, self.chain_id = None, ""
        outcome: Outcome = said
        return outcome

    def enforce(self, deadline: float) -> None:
        """Kill it if the chain in hand has taken longer than `deadline` seconds."""
        late = self.chain_id and time.monotonic() - self._since > deadline
        if late and not self.connection.poll():  # else it has gone on, and we were slow to hear it
            self._late = True
            self.kill()

    def _lost(self) -> UnitLost:
        assert self.task is not None
        status = self._reap()
        if self._late:
            cause = DEADLINE_KILL
        elif os.WIFSIGNALED(status):
            cause = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            cause = f"exit {os.waitstatus_to_exitcode(status)}"
        lost = UnitLost(self.task.unit_id, self.chain_id, cause)
        self.task = None
        return lost

    def kill(self) -> None:
        """Kill it and everything it started."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, wait until it is gone and close the line."""
        if self.pid:
            self.kill()
            self._reap()
        self.connection.close()

    def _reap(self) -> int:
        self.kill()  # the line is dead: make sure the process and its tools are, too
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            status = 0
        if self._popen is not None:
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.pid = 0
        return status


def _fork(mine: socket.socket, theirs: socket.socket) -> int:
    watcher = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():  # Python 3.12 warns of the sleeping threads of BLAS and Arrow,
        warnings.simplefilter("ignore", DeprecationWarning)  # which both handle a fork
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        mine.close()
        serve(Connection(theirs.detach()), watcher)
        code = 0
    finally:
        os._exit(code)  # no exit handlers: they belong to the watcher
    raise AssertionError("unreachable")

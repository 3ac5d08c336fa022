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
_TICK = 0.25  # seconds between looks at the deadline
_MAIN = "import sys; from evofeed.featurize.job import worker; worker.main(*map(int, sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class UnitLost:
    """A worker died over a unit.

    Attributes:
        chain_id: what it had in hand: "" if no chain, None if nobody knows.
        cause: `deadline`, `signal NAME` or `exit CODE`, or what Ray says.
    """

    unit_id: str
    chain_id: str | None
    cause: str


@dataclass(frozen=True, slots=True)
class UnitFailed:
    """A unit could not be done for a reason that is no chain's fault, such as a full disk."""

    unit_id: str
    error: EvofeedError


def serve(connection: Connection, watcher: int) -> None:
    """The worker's life: unit tasks in, breadcrumbs and results out, until the other end closes.

    A breadcrumb is the id of a chain, an outcome is pickled.
    """
    die_with(watcher)
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)  # tools started here can be killed together
    os.dup2(2, 1)  # standard output is the report's, whatever a parser prints
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the watcher's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
        why = f"{type(error).__name__}: {error}; see to that and run it again, what is done is kept"
        return UnitFailed(task.unit_id, JobError(why))


def die_with(watcher: int) -> None:
    """Have the kernel kill this process when the one that started it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != watcher:  # it died before we asked
        os._exit(1)


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
        self.unit_id = ""
        self.chain_id = ""
        self._since = 0.0
        self._late = False

    def _spawn(self, theirs: socket.socket) -> int:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _MAIN, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        return self._popen.pid

    @property
    def idle(self) -> bool:
        """Whether it waits for a unit."""
        return not self.unit_id

    def start(self, unit_id: str, task: bytes) -> None:
        """Hand it a pickled `Task`; it must be idle."""
        assert not self.unit_id
        self.unit_id, self.chain_id, self._since = unit_id, "", time.monotonic()
        with contextlib.suppress(OSError):  # it died while idle: `hear` will notice
            self.connection.send_bytes(task)

    def hear(self) -> bytes | UnitLost | None:
        """Take in what it has said; the outcome if the unit is over. Blocks while it is silent.

        Returns:
            A pickled `UnitOutput` or `UnitFailed`, or how the worker died over the unit.
        """
        assert self.unit_id
        try:
            said: Any = self.connection.recv()
        except (EOFError, OSError):
            return self._lost()
        if isinstance(said, str):
            self.chain_id, self._since = said, time.monotonic()
            return None
        self.unit_id = self.chain_id = ""
        outcome: bytes = said
        return outcome

    def enforce(self, deadline: float) -> None:
        """Kill it if the chain in hand has taken longer than `deadline` seconds."""
        late = self.chain_id and time.monotonic() - self._since > deadline
        if late and not self.connection.poll():  # else it has gone on, and we were slow to hear it
            self._late = True
            self.kill()

    def _lost(self) -> UnitLost:
        status = self._reap()
        if self._late:
            cause = DEADLINE_KILL
        elif os.WIFSIGNALED(status):
            cause = f"signal {signal.Signals(os.WTERMSIG(status)).name}"
        else:
            cause = f"exit {os.waitstatus_to_exitcode(status)}"
        lost = UnitLost(self.unit_id, self.chain_id, cause)
        self.unit_id = ""
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


def watch(worker: Worker, unit_id: str, task: bytes, deadline: float) -> bytes | UnitLost:
    """One unit on one worker, to its end; what `Worker.hear` gives back."""
    worker.start(unit_id, task)
    while True:
        if pipes.wait([worker.connection], _TICK):
            outcome = worker.hear()
            if outcome is not None:
                return outcome
        worker.enforce(deadline)


_worker: Worker | None = None  # of the Ray worker that this process is


def unit_on_ray(unit_id: str, task: bytes, deadline: float) -> bytes | UnitLost:
    """The function that Ray calls: one unit on this Ray worker's own worker process.

    Units come and outcomes go as bytes, so that Ray's workers do not load what a unit needs.
    """
    global _worker
    if _worker is None or not _worker.pid:
        _worker = Worker(fresh=True)
    return watch(_worker, unit_id, task, deadline)


def environment() -> dict[str, str]:
    """That of a fresh interpreter which finds modules where this one does."""
    path = os.pathsep.join(part for part in sys.path if part)
    return {**os.environ, "PYTHONPATH": path}


def _fork(mine: socket.socket, theirs: socket.socket) -> int:
    watcher = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
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

"""Units on Ray core tasks: a private Ray on this machine, or a cluster by address.

Ray only carries units to workers. Retrying is ours (`max_retries=0`), for Ray
does not know which chain killed a worker. Nor is Ray let into this process: it
prints to standard output, and its core ends the process it is in when it loses
the cluster. It lives in a process of its own (`ray_host.py`), and whether it
lives at all is seen from here.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing import connection
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from evofeed.errors import JobError
from evofeed.featurize.job import guardian
from evofeed.featurize.job.executors import ExecutorGone, Outcome, outcome_of
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import UnitLost, environment

_KNOCK = 30.0  # seconds a cluster's head may take to answer
_START = 300.0  # seconds Ray may take to start on a busy machine
_LEAVE = 20.0  # seconds to take leave of a cluster
_TEMP = "/tmp"  # a Unix socket's path may have 107 bytes, so no deep TMPDIR
_HOST = "import sys; from evofeed.featurize.job import ray_host; ray_host.main(*sys.argv[1:])"

# No usage statistics; tools die with their worker. Where memory runs out, Ray's own monitor would
# kill the watcher and the kernel kills the largest process: the worker, whose watcher knows why.
_ENVIRON = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_process_group_cleanup_enabled": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_memory_monitor_refresh_ms": "0",
}


class RayExecutor:
    """A bounded window of Ray tasks: two units per core are in flight, the rest waits with us.

    Args:
        num_workers: cores of a private Ray; at most so many units at once on a cluster, 0 for
            all its cores.
        deadline: seconds one chain may take.
        address: of a cluster; empty for a private Ray.
        gcs_away: seconds in which a cluster's GCS may be restarted; Ray itself waits for 60.

    Raises:
        JobError: Ray does not start, or nothing answers at the address.
    """

    def __init__(
        self, num_workers: int, deadline: float, address: str = "", gcs_away: float = 15.0
    ) -> None:
        self._gcs_away = gcs_away if address else 0.0
        self.deadline = deadline
        self.limit = num_workers
        self.address = address
        self._flying: set[str] = set()
        self._nodes: list[tuple[str, dict[str, float]]] = []
        self._host: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self._servers: list[_Server] = []
        if self.address:
            self._start(minimal=False)
            return
        try:
            self._start(minimal=True)
        except JobError:  # another version of Ray, which needs what we leave out
            self._start(minimal=False)

    def _start(self, minimal: bool) -> None:
        try:
            if self.address:
                _knock(self.address)
            else:
                self._folder = tempfile.mkdtemp(prefix="evofeed-ray-", dir=_TEMP)
                self._guardian = guardian.start(self._folder)
            self._line = self._start_host()
            self._cores, self._memory, raylet, gcs = self._ready(minimal)
        except OSError as error:
            self.close()
            raise self._refusal(str(error)) from error
        except BaseException:
            self.close()
            raise
        watched = (("raylet", raylet, 0.0), ("GCS", gcs, self._gcs_away))
        self._servers = [_Server(name, at, away) for name, at, away in watched if at]

    def _start_host(self) -> Connection:
        mine, theirs = socket.socketpair()
        wanted = dict(_ENVIRON)
        if not self.address and "RAY_AUTH_MODE" not in os.environ:  # a token that touches no disk
            wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with theirs:
            self._host = subprocess.Popen(
                [sys.executable, "-c", _HOST, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # Ray prints there, and ours holds the report
                env={**environment(), **wanted},
                start_new_session=True,  # Ctrl-C in the terminal is not meant for it
            )
        return Connection(mine.detach())

    def _ready(self, minimal: bool) -> tuple[int, int, str, str]:
        try:
            self._line.send((self.address, self._folder, self.limit, minimal))
            if not self._line.poll(_START):
                raise self._refusal(f"not within {_START:.0f} s")
            word, said = self._line.recv()
            if word == "nodes":
                self._nodes = said
                word, said = self._line.recv()
        except (EOFError, OSError) as error:
            raise self._refusal("its process ended while it started") from error
        if word == "refused":
            raise self._refusal(said)
        ready: tuple[int, int, str, str] = said
        return ready

    def _refusal(self, reason: str) -> JobError:
        if self.address:  # a driver runs on a node of its cluster, one without cores will do
            where = f"join Ray at {self.address}"
            hint = f"run `ray start --address={self.address} --num-cpus=0` on this machine first"
        else:
            where, hint = "start a local Ray", "`evofeed featurize --executor local` needs no Ray"
        return JobError(f"cannot {where}: {reason.splitlines()[0]}; {hint}")

    def room(self) -> int:
        """Units it would take now; a cluster may have grown or shrunk since."""
        limited = 0 < self.limit < self._cores
        return (self.limit if limited else 2 * self._cores) - len(self._flying)

    def nodes(self) -> list[tuple[str, dict[str, float]]]:
        """The nodes there were when Ray last said so, each with its resources."""
        return self._nodes

    def submit(self, task: Task, node: str = "", num_cpus: int = 1) -> None:
        """Send a unit to whichever Ray worker is free first and has the memory for it.

        Args:
            task: the unit.
            node: only there; Ray's id of the node.
            num_cpus: cores it takes.
        """
        # A task that asks for more than the largest node has would wait forever.
        memory = min(task.expected_memory, self._memory)
        self._flying.add(task.unit_id)
        with contextlib.suppress(OSError):  # it is gone: `wait` will notice
            place = node, num_cpus
            self._line.send((task.unit_id, pickle.dumps(task), self.deadline, memory, place))

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first.

        Raises:
            ExecutorGone: Ray is; no unit in flight is to blame.
        """
        sockets = [server.socket for server in self._servers if server.socket]
        connection.wait([self._line, *sockets], timeout)
        outcomes, fault = self._hear()
        # Looked at after the outcomes were taken in: if Ray was there then, a worker that was
        # lost was not lost because Ray is.
        fault = fault or next(filter(None, (server.fault() for server in self._servers)), "")
        if fault:
            outcomes = [outcome for outcome in outcomes if not isinstance(outcome, UnitLost)]
            if not outcomes:
                raise self._gone(fault)
        self._flying -= {outcome.unit_id for outcome in outcomes}
        return outcomes

    def _hear(self) -> tuple[list[Outcome], str]:
        """What Ray's process has said, and why there will be no more of it."""
        outcomes: list[Outcome] = []
        try:
            while self._line.poll(0):
                word, said = self._line.recv()
                if word == "size":
                    self._cores, self._memory = said
                elif word == "nodes":
                    self._nodes = said
                elif word == "gone":
                    return outcomes, said
                else:
                    outcomes.append(outcome_of(said))
        except (EOFError, OSError):
            return outcomes, "its driver process ended"
        return outcomes, ""

    def _gone(self, fault: str) -> ExecutorGone:
        assert self._host
        self._host.kill()  # it would wait for an answer for a minute
        where = f"Ray at {self.address}" if self.address else "the private Ray of this job"
        then = "try again" + (" once it is there again" if self.address else "")
        what = f"{where} is gone: {fault}; what is done is kept: {then}"
        return ExecutorGone(what, again=not self.address)

    def close(self) -> None:
        """Stop our tasks, and Ray if we started it."""
        for server in self._servers:
            server.close()
        self._servers = []
        if self._host:
            with contextlib.suppress(AttributeError, OSError):
                self._line.close()
            if self._folder:
                self._host.kill()  # what it started is the guardian's
            try:
                self._host.wait(_LEAVE)
            except subprocess.TimeoutExpired:  # Ray waits for what is not there any more
                self._host.kill()
                self._host.wait()
            self._host = None
        if self._guardian:
            guardian.dismiss(self._guardian)
            guardian.clean(self._folder, os.getpid())  # it may have been killed
            self._guardian, self._folder = None, ""


class _Server:
    """A server of Ray at the end of a connection on which nothing is said: its death closes it.

    Args:
        name: what to call it.
        place: a Unix socket's path or `host:port`.
        away: seconds it may be away.
    """

    def __init__(self, name: str, place: str, away: float) -> None:
        self._name, self._place, self._away = name, place, away
        self._left = 0.0
        self.socket = self._connect()
        self._watched = self.socket is not None  # else it is on another machine

    def _connect(self) -> socket.socket | None:
        try:
            if self._place.startswith("/"):
                line = socket.socket(socket.AF_UNIX)
                line.connect(self._place)
            else:
                place = urlsplit(f"//{self._place}")
                line = socket.create_connection((place.hostname, place.port or 0), 2.0)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), 5)
        except OSError:
            return None
        line.setblocking(False)
        return line

    def fault(self) -> str:
        """What is wrong with it; nothing if it is there, or has been away for a moment only."""
        if self.socket is not None:
            try:
                while self.socket.recv(4096):
                    pass
            except BlockingIOError:
                return ""
            except OSError:
                pass
            self.close()
        if not self._watched:
            return ""
        self.socket = self._connect()  # a server may close a connection that says nothing
        if self.socket is not None:
            self._left = 0.0
            return ""
        self._left = self._left or time.monotonic()
        if time.monotonic() - self._left < self._away:
            return ""
        return f"its {self._name} does not answer any more (killed, or out of memory?)"

    def close(self) -> None:
        """Hang up."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None


def _knock(address: str) -> None:
    """Find out at once that no cluster is there: Ray asks on for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.port is None:  # `auto`
        return
    try:
        socket.create_connection((place.hostname, place.port), _KNOCK).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error})") from error

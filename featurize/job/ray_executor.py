"""Units on Ray core tasks: on a cluster by its address, or on a Ray started for the job.

Ray only carries units to workers. Retrying is ours (`max_retries=0`), for Ray does not know
which chain killed a worker. That Ray itself is there is seen by a connection to its servers:
its own calls go on waiting for a minute and more when it is not.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from evofeed.base.errors import JobError
from evofeed.featurize.job.executors import ExecutorGone, Outcome, outcome_of
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import UnitLost, unit_on_ray

_KNOCK = 30.0  # seconds a cluster's head may take to answer
_ANSWER = 60.0  # seconds in which Ray hands over a result that it says is there
_LOOK = 5.0  # seconds between looks at how large the cluster is
_TICK = 0.25  # seconds between looks at Ray's servers
_SHARE = 0.001  # of a resource that a unit takes: it says where, cores say how many


class RayExecutor:
    """A bounded window of Ray tasks: two units per core are in flight, the rest waits with us.

    Which node does a unit is Ray's to say.

    Args:
        num_workers: at most so many units at once, 0 for all its cores.
        address: of the cluster; `auto` is that of this machine, and starts one where none runs.
        gcs_away: seconds in which a cluster's GCS may be restarted; Ray itself waits for 60.

    Raises:
        JobError: nothing answers at the address.
    """

    def __init__(
        self, num_workers: int, deadline: float, address: str, gcs_away: float = 15.0
    ) -> None:
        self.deadline = deadline
        self.limit = num_workers
        self.address = address
        self._flying: dict[Any, tuple[str, str]] = {}  # unit and resource
        self._servers: list[_Server] = []
        self._looked = 0.0
        self._stack = contextlib.ExitStack()
        try:
            self._ray = self._stack.enter_context(_joined(address, num_workers))
            self._unit = self._ray.remote(max_retries=0)(unit_on_ray)
            self._look()
            raylet, gcs = self._places()
            watched = (("raylet", raylet, 0.0), ("GCS", gcs, gcs_away))
            self._servers = [_Server(name, at, away) for name, at, away in watched if at]
        except BaseException:
            self.close()
            raise

    def _look(self) -> None:
        """What the nodes of the cluster offer now; it may have grown or shrunk."""
        self._nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._looked = time.monotonic()

    def _places(self) -> tuple[str, str]:
        """Where the raylet of this machine and the GCS listen."""
        context = self._ray.get_runtime_context()
        sockets = {node["NodeID"]: node["RayletSocketName"] for node in self._ray.nodes()}
        return sockets.get(context.get_node_id(), ""), context.gcs_address

    def _offering(self, resource: str) -> list[dict[str, float]]:
        """The nodes with a resource; all where none has it."""
        return [node for node in self._nodes if resource in node] or self._nodes

    def room(self, resource: str = "") -> int:
        """Units it would take now, for nodes with a resource if it is named."""
        mine = sum(other == resource for _, other in self._flying.values() if resource)
        return min(self._most(resource) - mine, self._most() - len(self._flying))

    def _most(self, resource: str = "") -> int:
        """Units in flight on the nodes with a resource."""
        cores = max(int(sum(node.get("CPU", 0) for node in self._offering(resource))), 1)
        return self.limit if 0 < self.limit < cores else 2 * cores

    def slots(self, num_cpus: int) -> int:
        """Units of so many cores that run at once."""
        slots = sum(int(node.get("CPU", 0)) // num_cpus for node in self._nodes)
        return min(self.limit or slots, slots)

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Send a unit to whichever Ray worker is free first and has the memory for it,
        where there are such on nodes that offer the resource.
        """
        nodes = self._offering(resource)
        # A task that asks for more than the largest node has would wait forever.
        cores, memory = (
            int(max((node.get(kind, 0) for node in nodes), default=0)) for kind in ("CPU", "memory")
        )
        unit = self._unit.options(
            num_cpus=min(num_cpus, max(cores, 1)),
            memory=min(task.expected_memory, memory) or None,
            resources={resource: _SHARE} if any(resource in node for node in nodes) else None,
        )
        ref = unit.remote(task.unit_id, pickle.dumps(task), self.deadline)
        self._flying[ref] = task.unit_id, resource

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first.

        Raises:
            ExecutorGone: Ray is; no unit in flight is to blame.
        """
        end = time.monotonic() + timeout
        while True:
            left = max(0.0, min(_TICK, end - time.monotonic()))
            outcomes = self._outcomes(left)
            # Looked at after the outcomes were taken in: if Ray was there then, a worker that was
            # lost was not lost because Ray is.
            if fault := next(filter(None, (server.fault() for server in self._servers)), ""):
                outcomes = [outcome for outcome in outcomes if not isinstance(outcome, UnitLost)]
                if not outcomes:
                    raise self._gone(fault)
            if outcomes or time.monotonic() >= end:
                break
        if time.monotonic() - self._looked > _LOOK and not any(s.is_away for s in self._servers):
            self._look()
        return outcomes

    def _outcomes(self, timeout: float) -> list[Outcome]:
        if not self._flying:
            time.sleep(timeout)
            return []
        ready, _ = self._ray.wait(
            list(self._flying), num_returns=len(self._flying), timeout=0
        )  # all that are there, or the first that comes
        if not ready:
            ready, _ = self._ray.wait(list(self._flying), timeout=timeout)
        return [self._outcome(ref, self._flying.pop(ref)[0]) for ref in ready]

    def _outcome(self, ref: Any, unit_id: str) -> Outcome:
        from ray.exceptions import GetTimeoutError, LocalRayletDiedError, RayError, RayTaskError

        try:
            return outcome_of(self._ray.get(ref, timeout=_ANSWER))
        except LocalRayletDiedError:
            raise self._gone("its raylet died (killed, or out of memory?)") from None
        except GetTimeoutError:
            raise self._gone(f"no result within {_ANSWER:g} s") from None
        except RayTaskError as error:  # nothing of ours could run there
            cause = error.cause or error
            return UnitLost(unit_id, "", f"{type(cause).__name__}: {cause}")
        except RayError as error:  # a Ray worker or its node was lost
            return UnitLost(unit_id, None, type(error).__name__)

    def _gone(self, fault: str) -> ExecutorGone:
        return ExecutorGone(
            f"Ray at {self.address} is gone: {fault}; what is done is kept: run it again once it "
            "is there again"
        )

    def close(self) -> None:
        """Stop our tasks and leave Ray."""
        away = any(server.is_away for server in self._servers)
        for server in self._servers:
            server.close()
        self._servers = []
        for ref in () if away else self._flying:  # it may be a Ray of the caller's, which goes on
            self._ray.cancel(ref, force=True)
        self._flying = {}
        self._stack.close()


@contextlib.contextmanager
def _joined(address: str, cores: int) -> Iterator[Any]:
    """Ray, joined or started; left as it was.

    Raises:
        JobError: nothing answers there, or it refuses.
    """
    import ray

    if ray.is_initialized():  # the caller's own, whose address we were given
        yield ray
        return
    with contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        # Standard output holds the report, and Ray would say there which workers died.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _knock(address)
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(address, **quiet)
            except ConnectionError:
                if address != "auto":
                    raise
                ray.init("local", num_cpus=cores or None, include_dashboard=False, **quiet)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            # A driver runs on a node of its cluster, one without cores will do.
            start = "--head" if address == "auto" else f"--address={address} --num-cpus=0"
            raise JobError(
                f"cannot join Ray at {address}: {reason}; run `ray start {start}` on this machine "
                "first"
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # for which Ray has put its own
        yield ray


class _Server:
    """A server of Ray at the end of a connection on which nothing is said: its death closes it.
    The place is a Unix socket's path or `host:port`; it may be `away` for some seconds.
    """

    def __init__(self, name: str, place: str, away: float) -> None:
        self._name, self._place, self._away = name, place, away
        self._left = 0.0
        self._socket = self._connect()
        self._watched = self._socket is not None  # else it is on another machine

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

    @property
    def is_away(self) -> bool:
        """Whether it did not answer at the last look."""
        return self._watched and self._socket is None

    def fault(self) -> str:
        """What is wrong with it; nothing if it is there, or has been away for a moment only."""
        if self._socket is not None:
            try:
                while self._socket.recv(4096):
                    pass
            except BlockingIOError:
                return ""
            except OSError:
                pass
            self.close()
        if not self._watched:
            return ""
        self._socket = self._connect()  # a server may close a connection that says nothing
        if self._socket is not None:
            self._left = 0.0
            return ""
        self._left = self._left or time.monotonic()
        if time.monotonic() - self._left < self._away:
            return ""
        return f"its {self._name} does not answer any more (killed, or out of memory?)"

    def close(self) -> None:
        """Hang up."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _knock(address: str) -> None:
    """Find out at once that no cluster is there: Ray asks on for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.port is None:  # `auto`
        return
    try:
        socket.create_connection((place.hostname, place.port), _KNOCK).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error})") from error

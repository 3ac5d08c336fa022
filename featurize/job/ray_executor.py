"""Units on Ray core tasks: on a cluster by its address, or on a Ray started for the job.

Ray only sends units to workers. `Dispatch` retries (`max_retries=0`), for Ray does not know
which chain killed a worker. Connections to Ray's servers tell whether Ray itself is alive:
its own calls wait for a minute and more when it is not.
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
from evofeed.featurize.job.executors import ExecutorGone, Outcome, unpickle_outcome
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import UnitLost, run_unit_on_ray

_CONNECT_TIMEOUT = 30.0  # seconds a cluster's head may take to answer
_GET_TIMEOUT = 60.0  # seconds in which Ray hands over a result that it reported as ready
_REFRESH = 5.0  # seconds between checks of the cluster's size
_TICK = 0.25  # seconds between checks of Ray's servers
_SHARE = 0.001  # of a resource that a unit takes: resources say where, cores say how many


class RayExecutor:
    """A bounded window of Ray tasks: two units per core are in flight, the rest stay queued here.

    Ray chooses the node of a unit.

    Args:
        num_workers: the limit of units at once, 0 for all cores of the cluster.
        address: of the cluster; `auto` joins the one of this machine, or starts one.
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
        self._in_flight: dict[Any, tuple[str, str]] = {}  # unit and resource
        self._servers: list[_Server] = []
        self._refreshed_at = 0.0
        self._stack = contextlib.ExitStack()
        try:
            self._ray = self._stack.enter_context(_joined(address, num_workers))
            self._unit = self._ray.remote(max_retries=0)(run_unit_on_ray)
            self._refresh_nodes()
            raylet, gcs = self._server_addresses()
            servers = (("raylet", raylet, 0.0), ("GCS", gcs, gcs_away))
            self._servers = [_Server(*server) for server in servers if server[1]]
        except BaseException:
            self.close()
            raise

    def _refresh_nodes(self) -> None:
        """Read the resources of the cluster's nodes; it may have grown or shrunk."""
        self._nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._refreshed_at = time.monotonic()

    def _server_addresses(self) -> tuple[str, str]:
        """Addresses of the raylet of this machine and of the GCS; empty if unknown."""
        context = self._ray.get_runtime_context()
        sockets = {node["NodeID"]: node["RayletSocketName"] for node in self._ray.nodes()}
        return sockets.get(context.get_node_id(), ""), context.gcs_address

    def _nodes_with(self, resource: str) -> list[dict[str, float]]:
        """The nodes that offer a resource; all nodes if none does."""
        return [node for node in self._nodes if resource in node] or self._nodes

    def room(self, resource: str = "") -> int:
        """Number of units it would take now, for nodes with a resource if one is named."""
        count = sum(other == resource for _, other in self._in_flight.values() if resource)
        return min(self._capacity(resource) - count, self._capacity() - len(self._in_flight))

    def _capacity(self, resource: str = "") -> int:
        """Limit of units in flight on the nodes with a resource."""
        cores = max(int(sum(node.get("CPU", 0) for node in self._nodes_with(resource))), 1)
        return self.limit if 0 < self.limit < cores else 2 * cores

    def slots(self, num_cpus: int) -> int:
        """Number of units of `num_cpus` cores that run at once."""
        slots = sum(int(node.get("CPU", 0)) // num_cpus for node in self._nodes)
        return min(self.limit or slots, slots)

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Send a unit to the first free Ray worker with enough memory, on a node that offers the
        resource if there is one.
        """
        nodes = self._nodes_with(resource)
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
        self._in_flight[ref] = task.unit_id, resource

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes of ended units, waiting up to `timeout` seconds for the first.

        Raises:
            ExecutorGone: Ray is gone; no unit in flight is to blame.
        """
        end = time.monotonic() + timeout
        while True:
            outcomes = self._outcomes(max(0.0, min(_TICK, end - time.monotonic())))
            # Checked after the outcomes were received: if Ray is alive now, no worker among them
            # was lost because Ray was.
            if fault := next(filter(None, (server.fault() for server in self._servers)), ""):
                outcomes = [outcome for outcome in outcomes if not isinstance(outcome, UnitLost)]
                if not outcomes:
                    raise self._gone(fault)
            if outcomes or time.monotonic() >= end:
                break
        is_due = time.monotonic() - self._refreshed_at > _REFRESH
        if is_due and not any(server.is_away for server in self._servers):
            self._refresh_nodes()
        return outcomes

    def _outcomes(self, timeout: float) -> list[Outcome]:
        if not self._in_flight:
            time.sleep(timeout)
            return []
        refs = list(self._in_flight)
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
        if not ready:  # then the first that ends
            ready, _ = self._ray.wait(refs, timeout=timeout)
        return [self._outcome(ref, self._in_flight.pop(ref)[0]) for ref in ready]

    def _outcome(self, ref: Any, unit_id: str) -> Outcome:
        from ray.exceptions import GetTimeoutError, LocalRayletDiedError, RayError, RayTaskError

        try:
            return unpickle_outcome(self._ray.get(ref, timeout=_GET_TIMEOUT))
        except LocalRayletDiedError:
            raise self._gone("its raylet died (killed, or out of memory?)") from None
        except GetTimeoutError:
            raise self._gone(f"no result within {_GET_TIMEOUT:g} s") from None
        except RayTaskError as error:  # `run_unit_on_ray` could not start
            cause = error.cause or error
            return UnitLost(unit_id, "", f"{type(cause).__name__}: {cause}")
        except RayError as error:  # a Ray worker or its node was lost
            return UnitLost(unit_id, None, type(error).__name__)

    def _gone(self, fault: str) -> ExecutorGone:
        return ExecutorGone(
            f"Ray at {self.address} is gone: {fault}; finished work is kept: run it again once Ray "
            "is back"
        )

    def close(self) -> None:
        """Cancel the tasks and leave Ray."""
        is_away = any(server.is_away for server in self._servers)
        for server in self._servers:
            server.close()
        self._servers = []
        for ref in () if is_away else self._in_flight:  # the caller's own Ray continues to run
            self._ray.cancel(ref, force=True)
        self._in_flight = {}
        self._stack.close()


@contextlib.contextmanager
def _joined(address: str, cores: int) -> Iterator[Any]:
    """The `ray` module, joined to a cluster or started; a Ray of the caller's own is left as is.

    Raises:
        JobError: no Ray answers at the address, or it refuses.
    """
    import ray

    if ray.is_initialized():  # the caller's own, whose address is `address`
        yield ray
        return
    with contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        # Standard output holds the report, and Ray would print there which workers died.
        ray._private.worker.print_to_stdstream = lambda *_, **__: None
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_reachable(address)
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                ray.init(address, **quiet)
            except ConnectionError:
                if address != "auto":
                    raise
                ray.init("local", num_cpus=cores or None, include_dashboard=False, **quiet)
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            # A driver runs on a node of its cluster, which may have no cores.
            start = "--head" if address == "auto" else f"--address={address} --num-cpus=0"
            raise JobError(
                f"cannot join Ray at {address}: {reason}; run `ray start {start}` on this machine "
                "first"
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # which Ray has replaced
        yield ray


class _Server:
    """A server of Ray, watched over an idle connection that its death closes.

    The address is a Unix socket's path or `host:port`. The server may be away for `away` seconds.
    """

    def __init__(self, name: str, address: str, away: float) -> None:
        self._name, self._address, self._away = name, address, away
        self._away_since = 0.0
        self._socket = self._connect()
        self._watched = self._socket is not None  # else it is on another machine

    def _connect(self) -> socket.socket | None:
        try:
            if self._address.startswith("/"):
                connection = socket.socket(socket.AF_UNIX)
                connection.connect(self._address)
            else:
                url = urlsplit(f"//{self._address}")
                connection = socket.create_connection((url.hostname, url.port or 0), 2.0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), 5)
        except OSError:
            return None
        connection.setblocking(False)
        return connection

    @property
    def is_away(self) -> bool:
        """True if it did not answer at the last check."""
        return self._watched and self._socket is None

    def fault(self) -> str:
        """Description of the fault; empty if it answers, or has not been away for too long."""
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
        self._socket = self._connect()  # a server may close an idle connection
        if self._socket is not None:
            self._away_since = 0.0
            return ""
        self._away_since = self._away_since or time.monotonic()
        if time.monotonic() - self._away_since < self._away:
            return ""
        return f"its {self._name} does not answer any more (killed, or out of memory?)"

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _check_reachable(address: str) -> None:
    """Raise ConnectionError at once if no cluster is there: Ray keeps trying for minutes."""
    url = urlsplit(address if "://" in address else f"//{address}")
    if url.port is None:  # `auto`
        return
    try:
        socket.create_connection((url.hostname, url.port), _CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error})") from error

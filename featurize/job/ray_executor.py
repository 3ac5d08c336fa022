"""Units on Ray core tasks: a private Ray on this machine, or a cluster by address.

Ray only carries units to workers. Retrying is ours (`max_retries=0`), for Ray
does not know which chain killed a worker; so each Ray worker process watches one
worker process of its own, which does the dangerous part, and reports its end.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from evofeed.errors import JobError
from evofeed.featurize.job import guardian
from evofeed.featurize.job.executors import watch
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import Outcome, UnitLost, Worker

_OBJECT_STORE = 128 << 20  # only ids and counts cross
_CLUSTER_LOOK = 5.0  # seconds between looks at how many cores a cluster has
_KNOCK = 30.0  # seconds a cluster's head may take to answer
_START = 120.0  # seconds a local Ray may take to start on a busy machine
_TEMP = "/tmp"  # a Unix socket's path may have 107 bytes, so no deep TMPDIR

# One token per process: Ray's core reads it once and keeps it.
_TOKEN = secrets.token_hex(32)
_worker: Worker | None = None


def unit_on_ray(task: Task, deadline: float) -> Outcome:
    """The remote function: one unit on this Ray worker's own worker process."""
    global _worker
    if _worker is None or not _worker.pid:
        _worker = Worker(fresh=task.is_remote)
    return watch(_worker, task, deadline)


def _knock(address: str) -> None:
    """Find out at once that no cluster is there: Ray asks on for minutes."""
    place = urlsplit(address if "://" in address else f"//{address}")
    if place.port is None:  # `auto`
        return
    try:
        socket.create_connection((place.hostname, place.port), _KNOCK).close()
    except OSError as error:
        raise ConnectionError(f"nothing answers there ({error.strerror or error})") from error


def _forget_token() -> None:
    """Have Ray's core read the token anew: an earlier Ray of this process may have had another."""
    with contextlib.suppress(ImportError, AttributeError):  # not in every version of Ray
        from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

        AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    """Ray gives a node it starts 30 seconds, and no setting of its own changes that."""
    from ray._private import services

    ask: Callable[..., Any] | None = getattr(services, "get_node", None)
    if ask is None:  # not in every version of Ray
        yield
        return

    def ask_on(*args: Any, **options: Any) -> Any:
        end = time.monotonic() + _START
        while True:
            try:
                return ask(*args, **options)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    services.get_node = ask_on
    try:
        yield
    finally:
        services.get_node = ask


class RayExecutor:
    """A bounded window of Ray tasks: two units per core are in flight, the rest waits with us."""

    def __init__(self, num_workers: int, deadline: float, address: str = "") -> None:
        self.deadline = deadline
        self.limit = num_workers
        self.address = address
        self._flying: dict[Any, str] = {}
        self._window = (0.0, 0, 0)
        self._guardian: subprocess.Popen[bytes] | None = None
        self._environ: dict[str, str | None] = {}
        self._ray = self._start(num_workers)
        remote = self._ray.remote(num_cpus=1, max_retries=0)
        self._unit = remote(unit_on_ray)

    def _start(self, num_workers: int) -> Any:
        self._ours = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        if self._ours:
            self._set_environ()
        import ray
        from ray.exceptions import RayError

        _forget_token()
        self._lost = RayError
        if not self._ours:  # the caller's Ray, which stays when we go
            return ray
        try:
            with _patience():
                self._init(ray, num_workers)
        except Exception as error:  # a node that is slow to start raises a bare one
            self.close()
            raise self._refusal(error) from error
        return ray

    def _init(self, ray: Any, num_workers: int) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address:
            _knock(self.address)
            ray.init(address=self.address, **quiet)
            return
        folder = tempfile.mkdtemp(prefix="evofeed-ray-", dir=_TEMP)
        self._guardian = guardian.start(folder)
        ray.init(
            address="local",
            num_cpus=num_workers,
            object_store_memory=_OBJECT_STORE,
            include_dashboard=False,
            _temp_dir=folder,
            **quiet,
        )

    def _refusal(self, error: Exception) -> JobError:
        if self.address:  # a driver stands on a node of its cluster, one without cores will do
            where = f"join Ray at {self.address}"
            hint = f"run `ray start --address={self.address} --num-cpus=0` on this machine first"
        else:
            where, hint = "start a local Ray", "`evofeed featurize --executor local` needs no Ray"
        reason = (str(error) or type(error).__name__).splitlines()[0]
        return JobError(f"cannot {where}: {reason}; {hint}")

    def _set_environ(self) -> None:
        """No usage statistics, tools die with their worker, and a token that touches no disk."""
        wanted = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_process_group_cleanup_enabled": "1",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        if not self.address and "RAY_AUTH_MODE" not in os.environ:
            wanted |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
        for name, value in wanted.items():
            self._environ[name] = os.environ.get(name)
            os.environ[name] = value

    def room(self) -> int:
        """Units it would take now; a cluster may have grown or shrunk since."""
        _, cores, _ = self._look()
        return 2 * cores - len(self._flying)

    def _look(self) -> tuple[float, int, int]:
        """When we looked last; cores we may use; memory of the largest node in bytes."""
        looked, _, _ = self._window
        if not looked or time.monotonic() - looked > _CLUSTER_LOOK:
            there = int(self._ray.cluster_resources().get("CPU", 1))
            cores = min(self.limit, there) if self.limit and not self.address else max(there, 1)
            nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
            memory = int(max((node.get("memory", 0) for node in nodes), default=0))
            self._window = (time.monotonic(), cores, memory)
        return self._window

    def submit(self, task: Task) -> None:
        """Send a unit to whichever Ray worker is free first and has the memory for it."""
        _, _, largest = self._look()  # a task that asks for more than a node has waits for ever
        placed = self._unit.options(memory=min(task.expected_memory, largest) or None)
        self._flying[placed.remote(task, self.deadline)] = task.unit_id

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first."""
        if not self._flying:
            return []
        ready, _ = self._ray.wait(list(self._flying), num_returns=1, timeout=timeout)
        return [self._take(ref) for ref in ready]

    def _take(self, ref: Any) -> Outcome:
        unit_id = self._flying.pop(ref)
        try:
            outcome: Outcome = self._ray.get(ref)
        except self._lost as error:  # the Ray worker or its node is gone: nobody is to blame
            return UnitLost(unit_id, "", type(error).__name__)
        return outcome

    def close(self) -> None:
        """Stop our tasks, and Ray if we started it."""
        if self._ours and hasattr(self, "_ray"):
            self._ray.shutdown()
        elif hasattr(self, "_ray"):
            for ref in self._flying:
                self._ray.cancel(ref, force=True)
        self._flying.clear()
        for name, value in self._environ.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        self._environ.clear()
        if self._guardian:
            guardian.dismiss(self._guardian)
            self._guardian = None

"""The process that Ray takes for the driver: it starts or joins Ray and passes units on.

The job's own process speaks to it over a socket pair, and both watch that the
other lives. Units come and outcomes go as bytes, so that neither this process
nor Ray's workers, which watch a worker process each, load what a unit needs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from evofeed.featurize.job.worker import UnitLost, Worker, die_with, watch

_OBJECT_STORE = 128 << 20  # only ids and counts cross
_LOOK = 5.0  # seconds between looks at how large the cluster is

_worker: Worker | None = None


def unit_on_ray(unit_id: str, task: bytes, deadline: float) -> bytes | UnitLost:
    """The remote function: one unit on this Ray worker's own worker process."""
    global _worker
    if _worker is None or not _worker.pid:
        _worker = Worker(fresh=True)
    return watch(_worker, unit_id, task, deadline)


def main(descriptor: str, watcher: str) -> None:
    """Entry of the process: `ray_executor.py` is at the other end."""
    die_with(int(watcher))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = Connection(int(descriptor))
    address, folder, num_cpus, minimal = line.recv()
    try:
        ray = _start(address, folder, num_cpus, minimal)
        host = _Host(ray, line)
        line.send(("nodes", host.nodes()))
        line.send(("ready", (*host.size(), *host.servers())))
    except Exception as error:  # a node that is slow to start raises a bare one
        line.send(("refused", str(error) or type(error).__name__))
        return
    with contextlib.suppress(EOFError, OSError):  # the job is over, or its process is dead
        host.serve()
    if address:
        ray.shutdown()
    os._exit(0)  # a private Ray is the guardian's


def _start(address: str, folder: str, num_cpus: int, minimal: bool) -> Any:
    import ray

    from evofeed.featurize.job import ray_start

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address:
        ray.init(address=address, **quiet)
        return ray
    with ray_start.starting(minimal):
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=_OBJECT_STORE,
            include_dashboard=False,
            _temp_dir=folder,
            **quiet,
        )
    return ray


class _Host:
    def __init__(self, ray: Any, line: Connection) -> None:
        from ray.exceptions import LocalRayletDiedError, RayTaskError

        self._ray, self._line = ray, line
        self._gone, self._raised = LocalRayletDiedError, RayTaskError
        remote = ray.remote(num_cpus=1, max_retries=0)
        self._unit = remote(unit_on_ray)
        self._flying: dict[str, Any] = {}
        self._saying = threading.Lock()

    def size(self) -> tuple[int, int]:
        """Cores of the cluster, and bytes of memory of its largest node."""
        cores = max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return cores, int(max((node.get("memory", 0) for node in nodes), default=0))

    def nodes(self) -> list[tuple[str, dict[str, float]]]:
        """The nodes that are there, each with its resources."""
        return [(n["NodeID"], dict(n["Resources"])) for n in self._ray.nodes() if n["Alive"]]

    def servers(self) -> tuple[str, str]:
        """Where the raylet of this machine and the GCS listen."""
        context = self._ray.get_runtime_context()
        here = context.get_node_id()
        sockets = {node["NodeID"]: node["RayletSocketName"] for node in self._ray.nodes()}
        return sockets.get(here, ""), context.gcs_address

    def serve(self) -> None:
        """Take units until the other end closes."""
        looked = time.monotonic()
        while True:
            if self._line.poll(_LOOK):
                unit_id, task, deadline, memory, place = self._line.recv()
                unit = self._unit.options(memory=memory or None, **self._placed(*place))
                ref = unit.remote(unit_id, task, deadline)
                self._flying[unit_id] = ref
                ref.future().add_done_callback(
                    lambda done, unit_id=unit_id: self._tell(unit_id, done)
                )
            if time.monotonic() - looked > _LOOK:
                self._say("nodes", self.nodes())
                self._say("size", self.size())
                looked = time.monotonic()

    def _placed(self, node: str, num_cpus: int) -> dict[str, Any]:
        """Options of a task that runs on this node, or on any, and takes so many cores."""
        if not node:
            return {"num_cpus": num_cpus}
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        return {"num_cpus": num_cpus, "scheduling_strategy": strategy}

    def _tell(self, unit_id: str, done: Any) -> None:
        """Called by a thread of Ray's."""
        self._flying.pop(unit_id, None)
        error = done.exception()
        if error is None:
            self._say("outcome", done.result())
        elif isinstance(error, self._gone):
            self._say("gone", "its raylet died (killed, or out of memory?)")
        elif isinstance(error, self._raised):  # nothing of ours could run there
            cause = error.cause or error
            self._say("outcome", UnitLost(unit_id, "", f"{type(cause).__name__}: {cause}"))
        else:  # a Ray worker or its node was lost
            self._say("outcome", UnitLost(unit_id, None, type(error).__name__))

    def _say(self, word: str, said: Any) -> None:
        with self._saying, contextlib.suppress(OSError):
            self._line.send((word, said))

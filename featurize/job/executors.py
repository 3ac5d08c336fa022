"""Executors of units: local processes, and the interface that the one on Ray shares.

Both return an outcome for every unit submitted, in the order in which units end.
"""

from __future__ import annotations

import pickle
import time
from multiprocessing import connection
from typing import Protocol, runtime_checkable

from evofeed.base.errors import JobError
from evofeed.featurize.job.work import Task, UnitOutput
from evofeed.featurize.job.worker import UnitFailed, UnitLost, Worker

_TICK = 0.25  # seconds between looks at the deadlines

Outcome = UnitOutput | UnitLost | UnitFailed


class ExecutorGone(JobError):
    """The executor itself stopped; no unit in flight is to blame."""


def unpickle_outcome(reply: bytes | UnitLost) -> Outcome:
    """The outcome in a watcher's reply."""
    if isinstance(reply, UnitLost):
        return reply
    outcome: Outcome = pickle.loads(reply)
    return outcome


@runtime_checkable
class Executor(Protocol):
    """A bounded window of units in flight."""

    def room(self, resource: str = "") -> int:
        """Number of units it would take now, for nodes with a resource if one is named."""

    def slots(self, num_cpus: int) -> int:
        """Number of units of `num_cpus` cores that run at once."""

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Submit a unit, to one of the nodes that offer the resource if some do."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes of ended units, waiting up to `timeout` seconds for the first.

        Raises:
            ExecutorGone: no unit will ever end.
        """

    def close(self) -> None:
        """Stop the executor and everything that it started."""


class LocalExecutor:
    """Worker processes of this machine, one unit each."""

    def __init__(self, num_workers: int, deadline: float) -> None:
        self.deadline = deadline
        self.workers: list[Worker] = []
        self.num_workers = num_workers

    def room(self, resource: str = "") -> int:
        """Number of idle workers."""
        return self.num_workers - sum(not worker.is_idle for worker in self.workers)

    def slots(self, num_cpus: int) -> int:
        """Number of workers of this machine, whatever cores they take."""
        return self.num_workers

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Start a unit on an idle worker, or on a new one."""
        worker = next((worker for worker in self.workers if worker.is_idle), None)
        if worker is None:
            in_bucket = task.dataset_uri.partition("://")[0] not in (task.dataset_uri, "file")
            worker = Worker(fresh=in_bucket)  # as the S3 client needs it
            self.workers.append(worker)
        worker.start(task.unit_id, pickle.dumps(task))

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes of ended units, waiting up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        outcomes: list[Outcome] = []
        busy = {worker.connection: worker for worker in self.workers if not worker.is_idle}
        while busy and not outcomes and (timeout_left := end - time.monotonic()) > 0:
            for ready in connection.wait(list(busy), min(timeout_left, _TICK)):
                worker = busy[ready]  # type: ignore[index]
                reply = worker.receive_outcome()
                if reply is not None:
                    outcomes.append(unpickle_outcome(reply))
                    del busy[worker.connection]
                if not worker.pid:
                    worker.close()
                    self.workers.remove(worker)
            for worker in busy.values():
                worker.enforce_deadline(self.deadline)
        return outcomes

    def close(self) -> None:
        """Kill the workers and what they started."""
        while self.workers:
            self.workers.pop().close()

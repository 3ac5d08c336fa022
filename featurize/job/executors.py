"""Where units run: processes of this machine, or Ray.

Both give back an outcome for every unit taken, in whatever order they end.
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
    """What runs the units is gone itself; that is the fault of no unit in flight."""


def outcome_of(said: bytes | UnitLost) -> Outcome:
    """What a watcher passed on, unpacked."""
    if isinstance(said, UnitLost):
        return said
    outcome: Outcome = pickle.loads(said)
    return outcome


@runtime_checkable
class Executor(Protocol):
    """A bounded window of units in flight."""

    def room(self, resource: str = "") -> int:
        """Units it would take now, for nodes with a resource if it is named."""

    def slots(self, num_cpus: int) -> int:
        """Units of so many cores that run at once."""

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Take a unit, for one of the nodes that offer a resource if some do."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first.

        Raises:
            ExecutorGone: there will be none any more.
        """

    def close(self) -> None:
        """Stop everything; nothing is left running."""


class LocalExecutor:
    """Worker processes of this machine, one unit each."""

    def __init__(self, num_workers: int, deadline: float) -> None:
        self.deadline = deadline
        self.workers: list[Worker] = []
        self.num_workers = num_workers

    def room(self, resource: str = "") -> int:
        """Units it would take now."""
        return self.num_workers - sum(not worker.idle for worker in self.workers)

    def slots(self, num_cpus: int) -> int:
        """Workers of this machine: as many as were asked for, whatever they take."""
        return self.num_workers

    def submit(self, task: Task, num_cpus: int = 1, resource: str = "") -> None:
        """Start a unit on an idle worker, or on a new one."""
        worker = next((worker for worker in self.workers if worker.idle), None)
        if worker is None:
            in_bucket = task.dataset_uri.partition("://")[0] not in (task.dataset_uri, "file")
            worker = Worker(fresh=in_bucket)  # as the S3 client needs it
            self.workers.append(worker)
        worker.start(task.unit_id, pickle.dumps(task))

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        outcomes: list[Outcome] = []
        busy = {worker.connection: worker for worker in self.workers if not worker.idle}
        while busy and not outcomes and (left := end - time.monotonic()) > 0:
            for ready in connection.wait(list(busy), min(left, _TICK)):
                worker = busy[ready]  # type: ignore[index]
                said = worker.hear()
                if said is not None:
                    outcomes.append(outcome_of(said))
                    del busy[worker.connection]
                if not worker.pid:
                    worker.close()
                    self.workers.remove(worker)
            for worker in busy.values():
                worker.enforce(self.deadline)
        return outcomes

    def close(self) -> None:
        """Kill the workers and what they started."""
        while self.workers:
            self.workers.pop().close()

"""Where units run: processes of this machine, or Ray.

Both give back an outcome for every unit taken, in whatever order they end.
"""

from __future__ import annotations

import time
from multiprocessing import connection
from typing import Protocol, runtime_checkable

from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import Outcome, Worker

_TICK = 0.25  # seconds between looks at the deadlines


@runtime_checkable
class Executor(Protocol):
    """A bounded window of units in flight."""

    def room(self) -> int:
        """Units it would take now."""

    def submit(self, task: Task) -> None:
        """Take a unit."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first."""

    def close(self) -> None:
        """Stop everything; nothing is left running."""


class LocalExecutor:
    """Worker processes of this machine, one unit each."""

    def __init__(self, num_workers: int, deadline: float) -> None:
        self.deadline = deadline
        self.workers: list[Worker] = []
        self.num_workers = num_workers

    def room(self) -> int:
        """Units it would take now."""
        return self.num_workers - sum(not worker.idle for worker in self.workers)

    def submit(self, task: Task) -> None:
        """Start a unit on an idle worker, or on a new one."""
        for worker in self.workers:
            if worker.idle:
                worker.start(task)
                return
        self.workers.append(Worker(fresh=task.is_remote))
        self.workers[-1].start(task)

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first."""
        end = time.monotonic() + timeout
        outcomes: list[Outcome] = []
        busy = {worker.connection: worker for worker in self.workers if not worker.idle}
        while busy and not outcomes and (left := end - time.monotonic()) > 0:
            for ready in connection.wait(list(busy), min(left, _TICK)):
                worker = busy[ready]  # type: ignore[index]
                outcome = worker.hear()
                if outcome is not None:
                    outcomes.append(outcome)
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


def watch(worker: Worker, task: Task, deadline: float) -> Outcome:
    """One unit on one worker, to its end."""
    worker.start(task)
    while True:
        if connection.wait([worker.connection], _TICK):
            outcome = worker.hear()
            if outcome is not None:
                return outcome
        worker.enforce(deadline)

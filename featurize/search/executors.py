"""Where searches run: worker processes of this machine, or those of a Ray cluster's nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, Protocol, runtime_checkable

from evofeed.featurize.job import open_executor as job_executor
from evofeed.featurize.search.options import SearchOptions
from evofeed.featurize.search.plan import Node
from evofeed.featurize.search.work import SearchTask

_GRACE: Final = 60.0
"""Seconds beyond a program's own deadline after which its worker is killed."""


@runtime_checkable
class SearchExecutor(Protocol):
    """A job's executor that also says which machines it has."""

    def nodes(self) -> list[Node]:
        """The machines there are now."""

    def slots(self) -> int:
        """Units that run at once on all of them."""

    def submit(self, task: SearchTask, node: Node) -> None:
        """Start a unit on a node."""

    def wait(self, timeout: float) -> list[Any]:
        """Outcomes that are there, waiting up to `timeout` seconds for the first."""


class _OnePlace:
    """This machine as the only node, with every database."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor
        self._node = Node("", executor.room(), {})

    def nodes(self) -> list[Node]:
        return [self._node]

    def slots(self) -> int:
        return self._node.slots

    def submit(self, task: SearchTask, node: Node) -> None:
        self.executor.submit(task)

    def wait(self, timeout: float) -> list[Any]:
        outcomes: list[Any] = self.executor.wait(timeout)
        return outcomes


class _Cluster:
    """The nodes of a Ray, each with the databases that its resources name."""

    def __init__(self, executor: Any, threads: int) -> None:
        self.executor, self.threads = executor, threads

    def nodes(self) -> list[Node]:
        return [
            Node(node_id, int(there.get("CPU", 0)) // self.threads, there)
            for node_id, there in self.executor.nodes()
        ]

    def slots(self) -> int:
        return max(1, sum(node.slots for node in self.nodes()))

    def submit(self, task: SearchTask, node: Node) -> None:
        self.executor.submit(task, node.node_id, self.threads)

    def wait(self, timeout: float) -> list[Any]:
        outcomes: list[Any] = self.executor.wait(timeout)
        return outcomes


@contextlib.contextmanager
def open_executor(options: SearchOptions) -> Iterator[SearchExecutor]:
    """The executor that the options name, closed with all that it started.

    Raises:
        JobError: Ray cannot be started or joined.
    """
    local, deadline = options.executor == "local", options.deadline + _GRACE
    executor = job_executor.open_executor(
        local, deadline, options.num_workers, options.workers, options.ray_address
    )
    with contextlib.closing(executor):
        yield _OnePlace(executor) if local else _Cluster(executor, options.threads)

"""Jobs whose units run in this process: for tests that are not about the workers of a job.

A process of pytest's has threads, and so starts every worker as a fresh interpreter: two seconds.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evofeed.base.errors import EvofeedError
from evofeed.featurize.job import dispatch
from evofeed.featurize.job.worker import UnitFailed


class Inside:
    """Takes as many units as `LocalExecutor` would, and does them one after the other."""

    def __init__(self, num_workers: int = 2, deadline: float = 0.0) -> None:
        self._room = num_workers
        self.tasks: list[Any] = []

    def room(self, resource: str = "") -> int:
        return self._room - len(self.tasks)

    def slots(self, num_cpus: int) -> int:
        return self._room

    def submit(self, task: Any, num_cpus: int = 1, resource: str = "") -> None:
        self.tasks.append(pickle.loads(pickle.dumps(task)))

    def wait(self, timeout: float) -> list[Any]:
        return [self.outcome(self.tasks.pop(0))] if self.tasks else []

    def outcome(self, task: Any) -> Any:
        """What a worker would have sent back."""
        try:
            return task.work(lambda item: None)
        except EvofeedError as error:
            return UnitFailed(task.unit_id, error)

    def close(self) -> None:
        self.tasks.clear()


@contextmanager
def units_inside() -> Iterator[None]:
    """In this block no job starts a worker on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "LocalExecutor", Inside)
        yield

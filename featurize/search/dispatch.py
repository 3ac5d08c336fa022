"""Units given to nodes and taken back, tried again elsewhere, and who is to blame for lost ones."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, Protocol, runtime_checkable

from evofeed.errors import JobError
from evofeed.featurize.job.executors import ExecutorGone
from evofeed.featurize.job.worker import UnitLost
from evofeed.featurize.search.executors import SearchExecutor, open_executor
from evofeed.featurize.search.options import SearchOptions
from evofeed.featurize.search.plan import Schedule, SearchUnit, cost_of, cut_up, make_units
from evofeed.featurize.search.work import DatabaseInfo, SearchResult, SearchTask

TICK: Final = 0.5
_STRIKES: Final = 3
"""Times a sequence may fail in a database; each time elsewhere if there is an elsewhere."""
_LOST_TOGETHER: Final = 3
"""Times a unit may lose its worker, nobody knows over which sequence, before it is cut up."""
_PARTS: Final = 16
_MAX_LOST: Final = 6
"""Times a unit may lose its worker with no sequence to blame."""
_NOWHERE: Final = 60.0
"""Seconds to wait for a node that holds a database."""
REST: Final = 6.0
"""Seconds until Ray says that a node has died, and some."""
_RESTARTS: Final = 3

Why = dict[str, Any]
"""`type` and `message` of what went wrong."""


@runtime_checkable
class Book(Protocol):
    """Who asked for the units: says what a unit is, and takes down what comes of it."""

    def task(self, unit: SearchUnit) -> SearchTask:
        """What a worker needs to know of a unit."""

    def info_of(self, unit: SearchUnit) -> DatabaseInfo:
        """The database of a unit."""

    def keep(self, unit: SearchUnit, result: SearchResult) -> None:
        """A unit ended, with these results."""

    def fail(self, unit: SearchUnit, key: str, strikes: int, why: Why) -> None:
        """A sequence of a unit failed, for the `strikes`th time."""

    def tell(self, done: int = 0) -> None:
        """So much more work, in residues, is done; 0 where only time has passed."""


class Dispatch:
    """Units at work on the nodes of an executor.

    Args:
        book: who asked for them.
        options: where searches run.
        executor: to use instead of one that the options name, which is started when needed.
        rest: seconds a node that lost a unit gets no other.
    """

    def __init__(
        self,
        book: Book,
        options: SearchOptions,
        executor: SearchExecutor | None = None,
        rest: float = REST,
    ) -> None:
        self.lost_workers = 0
        self._book, self._options = book, options
        self._executor, self._rest = executor, rest
        self._stack = contextlib.ExitStack()
        self._restarts = 0
        self._losses: Counter[str] = Counter()  # by unit, with nobody to blame

    def close(self) -> None:
        """Stop the workers, if it started some."""
        self._stack.close()

    @property
    def executor(self) -> SearchExecutor:
        """Started when there is something to search: what the cache has needs no workers."""
        if self._executor is None:
            self._executor = self._stack.enter_context(open_executor(self._options))
        return self._executor

    def work(self, schedule: Schedule) -> dict[str, Why]:
        """Do all units; why a key has no result.

        Raises:
            JobError: a worker said so, no node holds a database, or workers are lost for no reason.
        """
        strikes: Counter[str] = Counter()
        reasons: dict[str, Why] = {}
        for unit, outcome, node_id in self.outcomes(schedule):
            again = list(unit.queries)
            if isinstance(outcome, SearchResult):
                self._book.keep(unit, outcome)
                reasons |= outcome.failures
                again = [q for q in unit.queries if q.key in outcome.failures]
                blamed = [q.key for q in again]
            else:
                self.lost_workers += 1
                blamed = self._blamed(unit, outcome)
                why = {"type": "WorkerKilled", "message": f"killed its worker ({outcome.cause})"}
                reasons |= dict.fromkeys(blamed, why)
            for key in blamed:
                strikes[key] += 1
                self._book.fail(unit, key, strikes[key], reasons[key])
            left = [q for q in again if strikes[q.key] < _STRIKES]
            if left == list(unit.queries):
                is_cut = not blamed and self._losses[unit.unit_id] == _LOST_TOGETHER
                units = cut_up(unit, _PARTS) if is_cut else [unit]
                for one in units:
                    schedule.put(dataclasses.replace(one, avoid=node_id))
                continue
            kind = self._book.info_of(unit).kind
            for more in make_units(unit.database, kind, left, self.executor.slots(), node_id):
                schedule.put(more)
            self._book.tell(unit.cost - sum(map(cost_of, left)))
        return reasons

    def _blamed(self, unit: SearchUnit, lost: UnitLost) -> list[str]:
        """Keys of the sequences that a lost worker counts against: one or none.

        Raises:
            JobError: the unit was lost too often, and none of its sequences is to blame.
        """
        if lost.chain_id:
            return [lost.chain_id]
        self._losses[unit.unit_id] += 1
        count = self._losses[unit.unit_id]
        if lost.chain_id is None and len(unit.queries) == 1 and count > _LOST_TOGETHER:
            return [unit.queries[0].key]
        if count >= _MAX_LOST:
            raise JobError(
                f"{count} workers were lost over the same few sequences, and none of these is to "
                f"blame ({lost.cause}); what was found is kept: see to the machine, its memory "
                "for one, and run it again"
            )
        return []

    def outcomes(self, schedule: Schedule) -> Iterator[tuple[SearchUnit, Any, str]]:
        """Units as they end, with their outcome and the node they were on."""
        flying: dict[str, tuple[SearchUnit, str]] = {}
        resting: dict[str, float] = {}  # nodes that lost a unit: Ray may not know yet that one died
        ended: list[tuple[SearchUnit, Any, str]] = []
        orphaned = time.monotonic()
        while schedule or flying or ended:
            nodes = self.executor.nodes()
            for node in nodes:
                if resting.get(node.node_id, 0.0) > time.monotonic():
                    continue
                at_work = sum(node_id == node.node_id for _, node_id in flying.values())
                for _ in range(node.slots - at_work):
                    unit = schedule.take(node, nodes)
                    if unit is None:
                        break
                    self.executor.submit(self._book.task(unit), node)
                    flying[unit.unit_id] = unit, node.node_id
            if flying:
                orphaned = time.monotonic()
            elif schedule and time.monotonic() - orphaned > _NOWHERE:
                name = (schedule.orphans(nodes) or ["?"])[0]
                raise JobError(
                    f"no node holds the database {name!r}: start one with `ray start --address=... "
                    f"--resources='{{\"db:{name}\": 1}}'`, and run it again"
                )
            yield from ended  # kept while the next units are at work
            ended = []
            failed: list[Exception] = []
            for outcome in self._wait(schedule, flying) if flying or schedule else ():
                unit, node_id = flying.pop(outcome.unit_id)
                if getattr(outcome, "chain_id", "") is None:
                    resting[node_id] = time.monotonic() + self._rest
                if (error := getattr(outcome, "error", None)) is not None:
                    failed.append(error)
                else:
                    ended.append((unit, outcome, node_id))
            if failed:
                yield from ended
                raise failed[0]
            self._book.tell()

    def _wait(self, schedule: Schedule, flying: dict[str, tuple[SearchUnit, str]]) -> list[Any]:
        """Outcomes that are there. Where a private Ray died, a new one does what was in work."""
        try:
            return self.executor.wait(TICK)
        except ExecutorGone as gone:
            self._restarts += 1
            self._losses.clear()  # earlier ones may have been its fault
            if not gone.again or self._restarts > _RESTARTS:
                raise
            for unit, _ in flying.values():
                schedule.put(unit)
            flying.clear()
            self._stack.close()
            self._executor = None
            return []

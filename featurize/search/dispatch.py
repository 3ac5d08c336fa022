"""Units given to nodes and taken back, tried again elsewhere, and who is to blame for lost ones."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from evofeed.base.errors import JobError
from evofeed.featurize.job.blame import LOST_TOGETHER, Losses
from evofeed.featurize.job.executors import Executor
from evofeed.featurize.job.opening import open_executor
from evofeed.featurize.job.worker import UnitLost
from evofeed.featurize.search.options import SearchOptions
from evofeed.featurize.search.plan import Schedule, SearchUnit, cost_of, cut_up, make_units
from evofeed.featurize.search.work import SearchResult, SearchTask

TICK: Final = 0.5
_STRIKES: Final = 3
"""Times a sequence may fail in a database; each time elsewhere if there is an elsewhere."""
_PARTS: Final = 16
_NOWHERE: Final = 60.0
"""Seconds to wait for a node that holds a database."""
GRACE: Final = 60.0
"""Seconds beyond a program's own deadline after which its worker is killed."""
REST: Final = 6.0
"""Seconds until Ray says that a node has died, and some."""

Why = dict[str, Any]
"""`type` and `message` of what went wrong."""


Tasks = Callable[[SearchUnit], SearchTask]
"""What a worker needs to know of a unit."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A unit that was at work.

    Attributes:
        unit: which.
        result: what came of it; None if its worker was lost.
        failed: why sequences of it failed, by key.
        done: work that needs not be done again, in residues.
    """

    unit: SearchUnit
    result: SearchResult | None
    failed: dict[str, Why]
    done: int


class Dispatch:
    """Units at work on the nodes of an executor.

    Args:
        options: where searches run.
        executor: to use instead of one that the options name, which is started when needed.
        rest: seconds a node that lost a unit gets no other.
    """

    def __init__(
        self,
        options: SearchOptions,
        executor: Executor | None = None,
        rest: float = REST,
    ) -> None:
        self.lost_workers = 0
        self._options = options
        self._executor, self._rest = executor, rest
        self._stack = contextlib.ExitStack()
        self._losses = Losses()

    def close(self) -> None:
        """Stop the workers, if it started some."""
        self._stack.close()

    @property
    def executor(self) -> Executor:
        """Started when there is something to search: what the cache has needs no workers."""
        if self._executor is None:
            self._executor = open_executor(self._options, GRACE)
            self._stack.callback(self._executor.close)
        return self._executor

    def slots(self) -> int:
        """Units that run at once on all nodes."""
        return max(1, sum(node.slots for node in self.executor.nodes(self._options.threads)))

    def work(self, schedule: Schedule, task: Tasks) -> Iterator[Ended | None]:
        """Do all units; each as it ends, and None now and then where only time has passed.

        Raises:
            JobError: a worker said so, no node holds a database, or workers are lost for no reason.
        """
        strikes: Counter[str] = Counter()
        for ended in self.outcomes(schedule, task):
            if ended is None:
                yield None
                continue
            unit, outcome, node_id = ended
            again, result = list(unit.queries), None
            if isinstance(outcome, SearchResult):
                result, reasons = outcome, outcome.failures
                again = [q for q in unit.queries if q.key in reasons]
            else:
                self.lost_workers += 1
                why = {"type": "WorkerKilled", "message": f"killed its worker ({outcome.cause})"}
                reasons = dict.fromkeys(self._blamed(unit, outcome), why)
            strikes.update(reasons.keys())
            left = [q for q in again if strikes[q.key] < _STRIKES]
            if left == list(unit.queries):
                is_cut = not reasons and self._losses.counts[unit.unit_id] == LOST_TOGETHER
                units = cut_up(unit, _PARTS) if is_cut else [unit]
                units = [dataclasses.replace(one, avoid=node_id) for one in units]
            else:
                units = make_units(unit.database, unit.kind, left, self.slots(), node_id)
            for one in units:
                schedule.put(one)
            yield Ended(unit, result, reasons, unit.cost - sum(map(cost_of, left)))

    def _blamed(self, unit: SearchUnit, lost: UnitLost) -> list[str]:
        """Keys of the sequences that a lost worker counts against: one or none.

        Raises:
            JobError: the unit was lost too often, and none of its sequences is to blame.
        """
        if lost.chain_id:
            return [lost.chain_id]
        alone = lost.chain_id is None and len(unit.queries) == 1
        count = self._losses.one_more(lost, alone=alone)
        return [unit.queries[0].key] if alone and count > LOST_TOGETHER else []

    def outcomes(
        self, schedule: Schedule, task: Tasks
    ) -> Iterator[tuple[SearchUnit, Any, str] | None]:
        """Units as they end, with their outcome and the node they were on; None for a tick."""
        flying: dict[str, tuple[SearchUnit, str]] = {}
        resting: dict[str, float] = {}  # nodes that lost a unit: Ray may not know yet that one died
        ended: list[tuple[SearchUnit, Any, str]] = []
        orphaned = time.monotonic()
        while schedule or flying or ended:
            nodes = self.executor.nodes(self._options.threads)
            for node in nodes:
                if resting.get(node.node_id, 0.0) > time.monotonic():
                    continue
                at_work = sum(node_id == node.node_id for _, node_id in flying.values())
                for _ in range(node.slots - at_work):
                    unit = schedule.take(node, nodes)
                    if unit is None:
                        break
                    self.executor.submit(task(unit), node.node_id, self._options.threads)
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
            for outcome in self.executor.wait(TICK) if flying or schedule else ():
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
            yield None

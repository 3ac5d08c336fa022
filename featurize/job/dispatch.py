"""Dispatch of units to workers for every kind of job: lease, submit, record, blame."""

from __future__ import annotations

import abc
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Final

from evofeed.base.errors import JobError
from evofeed.featurize.job.executors import Executor, LocalExecutor
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import ExecutorOptions
from evofeed.featurize.job.tables import TODO
from evofeed.featurize.job.units import Unit
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import DEADLINE_KILL, UnitFailed, UnitLost
from evofeed.store.inner import Lease

TICK: Final = 0.5
"""Seconds between checks for cancellation, and between calls of `progress`."""


def open_executor(options: ExecutorOptions, grace: float = 0.0) -> Executor:
    """The executor that the options name; closing it stops everything that it started. A worker
    is killed `grace` seconds after the deadline.

    Raises:
        JobError: Ray cannot be joined.
    """
    deadline = options.deadline + grace
    if not (address := options.cluster):
        return LocalExecutor(options.num_workers, deadline)
    from evofeed.featurize.job.ray_executor import RayExecutor

    return RayExecutor(options.workers, deadline, address)


class Dispatch(abc.ABC):
    """Loop that submits the units of a job to an executor until all are done."""

    lost_workers = 0
    progress: Callable[[Any], None] | None
    lease: Lease | None
    """Lease on the dataset, renewed while units run."""
    _progress_time = 0.0

    def attach(
        self, ledger: Ledger, job_id: str, units: Iterable[Unit], options: ExecutorOptions
    ) -> None:
        """Set the job to dispatch and its units."""
        self.ledger, self.job_id, self._cores = ledger, job_id, options.cores
        self.units = {unit.unit_id: unit for unit in units}
        self.blame = Blame(ledger, job_id, options.deadline)

    @abc.abstractmethod
    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> Task:
        """The task that a worker needs for these items of a unit."""

    @abc.abstractmethod
    def record_output(self, output: Any, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Record the output of items of a unit; True if the unit has items left to do.

        `is_trial`: they were sent without the rest, to see whether they kill a worker.
        """

    def resource(self, unit_id: str) -> str:
        """Ray resource of the nodes that can run a unit; empty: any node can."""
        return ""

    @abc.abstractmethod
    def current_progress(self) -> Any:
        """Argument of `progress`, which is called twice a second and whenever a unit ends."""

    def run_units(self, options: ExecutorOptions) -> bool:
        """Do all units that the ledger lists as to do; False if the job was cancelled."""
        if not self.ledger.units(self.job_id, TODO):
            return True
        with contextlib.closing(open_executor(options)) as executor:
            return self.run_units_on(executor)

    def run_units_on(self, executor: Executor) -> bool:
        """Do all units on an executor; False if the job was cancelled.

        Raises:
            ExecutorGone: the executor stopped, such as a Ray cluster that was shut down.
            JobError: a unit failed and no item is to blame, or lost its workers repeatedly.
        """
        waiting = [unit["unit_id"] for unit in self.ledger.units(self.job_id, TODO)]
        in_flight: dict[str, tuple[str, ...]] = {}
        outcomes: list[Any] = []
        while waiting or in_flight or outcomes:
            is_cancelled = self.ledger.job(self.job_id).cancel_requested
            if self.lease:
                self.lease.renew()
            submitted = {outcome.unit_id: in_flight.pop(outcome.unit_id) for outcome in outcomes}
            while not is_cancelled and (unit_id := self._next_unit(waiting, executor)):
                waiting.remove(unit_id)
                in_flight[unit_id] = self.remaining(unit_id)
                self.ledger.lease(self.job_id, unit_id)
                task = self.task(unit_id, in_flight[unit_id])
                executor.submit(task, self._cores, self.resource(unit_id))
            for outcome in outcomes:  # while the next units run
                if self._handle_outcome(outcome, submitted[outcome.unit_id]):
                    waiting.append(outcome.unit_id)
            now = time.monotonic()
            if self.progress and (outcomes or now - self._progress_time > TICK):
                self._progress_time = now
                self.progress(self.current_progress())
            if is_cancelled:
                return False
            outcomes = executor.wait(TICK) if in_flight or not outcomes else []
            outcomes.sort(key=lambda outcome: isinstance(outcome, UnitFailed))  # which ends the job
        return True

    def _next_unit(self, waiting: Iterable[str], executor: Executor) -> str:
        """The first unit that the executor has room for; empty if there is none."""
        has_room = cache(executor.room)
        return next((unit for unit in waiting if has_room(self.resource(unit)) > 0), "")

    def remaining(self, unit_id: str) -> tuple[str, ...]:
        """Items of a unit to do next; suspects first, so that they fail before work is lost."""
        chains = self.ledger.chains(self.job_id, dead=None, unit_id=unit_id)
        is_dead = {chain["chain_id"]: chain["dead"] for chain in chains}
        ids = self.blame.suspects(unit_id) or self.units[unit_id].chain_ids
        alive = (item_id for item_id in ids if not is_dead.get(item_id))
        return tuple(sorted(alive, key=lambda item_id: item_id not in is_dead))

    def _handle_outcome(self, outcome: Any, item_ids: tuple[str, ...]) -> bool:
        if isinstance(outcome, UnitFailed):
            self.ledger.requeue(self.job_id, outcome.unit_id)
            raise outcome.error
        if isinstance(outcome, UnitLost):
            self.lost_workers += 1
            self.blame.record_loss(outcome, item_ids)
            return True
        return self.record_output(outcome, item_ids, self.blame.end_trial(outcome.unit_id))


_STRIKES = 2
_STRIKES_FROM_OUTSIDE = 3  # SIGKILL and the end of a Ray worker also come from outside
_LOST_TOGETHER = 3  # times a unit may lose its worker over an unknown item, before it is split
_MAX_LOST = 6  # times a unit may lose its worker with no item to blame
_PARTS = 16  # that such a unit is split into, and again each part that loses its worker

_NO_LINE: dict[str, Any] = {"path": None, "line": None}


class Blame:
    """Finds the item that killed a worker: the current one, or the only one of the unit, if any.

    A watcher knows the current item (a chain, an entry, a sequence) of its worker. When the
    watcher is lost too, the item is unknown: such a unit is done again, and after some losses in
    parts, down to one item. `ray_executor.py` has checked before that Ray itself is alive.
    """

    def __init__(self, ledger: Ledger, job_id: str, deadline: float) -> None:
        self._ledger, self._job_id, self._deadline = ledger, job_id, deadline
        self._losses: Counter[tuple[str, tuple[str, ...]]] = Counter()  # by unit and suspects
        self._trials: dict[str, deque[tuple[str, ...]]] = {}  # by unit: parts still to be tried

    def suspects(self, unit_id: str) -> tuple[str, ...]:
        """The items that the next attempt at a unit is limited to; empty for all."""
        return self._trials[unit_id][0] if unit_id in self._trials else ()

    def end_trial(self, unit_id: str) -> bool:
        """A unit ended well: clear its suspects; True if it was run with suspects alone."""
        suspects = self.suspects(unit_id)
        self._clear(unit_id, suspects)
        return bool(suspects)

    def record_loss(self, lost: UnitLost, item_ids: Sequence[str]) -> None:
        """Record a lost worker; `item_ids` of the unit are to be done again.

        Raises:
            JobError: the unit was lost too often, and none of its items is to blame.
        """
        unit_id, suspects = lost.unit_id, self.suspects(lost.unit_id)
        is_alone = lost.chain_id is None and len(suspects) == 1
        if item_id := suspects[0] if is_alone else lost.chain_id:
            self._add_strike(lost, item_id)
            return
        self._ledger.requeue(self._job_id, unit_id)
        self._losses[unit_id, suspects] += 1
        count = self._losses[unit_id, suspects]
        if count >= _MAX_LOST:
            raise JobError(
                f"{count} workers were lost over the same few chains, and none of these is to "
                f"blame ({lost.cause}); finished work is kept: check the machine, its memory "
                "first, and run it again"
            )
        if count == _LOST_TOGETHER and lost.chain_id is None and item_ids:
            size = -(-len(item_ids) // _PARTS)
            parts = [tuple(item_ids[n : n + size]) for n in range(0, len(item_ids), size)]
            self._clear(unit_id, suspects)
            self._trials[unit_id] = deque([*parts, *self._trials.get(unit_id, ())])

    def _add_strike(self, lost: UnitLost, item_id: str) -> None:
        is_own = lost.cause == DEADLINE_KILL or lost.cause.startswith(("signal ", "exit "))
        limit = _STRIKES if is_own and lost.cause != "signal SIGKILL" else _STRIKES_FROM_OUTSIDE
        if lost.cause == DEADLINE_KILL:
            message = f"took longer than {self._deadline:g} s, {limit} times"
        else:
            message = f"killed its worker {limit} times ({lost.cause})"
        failure = {"type": "WorkerKilled", "message": message, **_NO_LINE, "chain_id": item_id}
        if self._ledger.strike(self._job_id, lost.unit_id, failure, limit):
            self._clear(lost.unit_id, (item_id,))

    def _clear(self, unit_id: str, item_ids: Sequence[str]) -> None:
        """Take items out of the parts of a unit that are still to be tried."""
        parts = self._trials.pop(unit_id, ())
        remaining = [tuple(item for item in part if item not in item_ids) for part in parts]
        if trials := deque(filter(None, remaining)):
            self._trials[unit_id] = trials

"""Units of a job on their way, whatever kind of job it is: leased, sent, settled, blamed."""

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
from evofeed.featurize.job.options import Workplace
from evofeed.featurize.job.tables import TODO
from evofeed.featurize.job.units import Unit
from evofeed.featurize.job.work import Task
from evofeed.featurize.job.worker import DEADLINE_KILL, UnitFailed, UnitLost
from evofeed.store.inner import Lease

TICK: Final = 0.5
"""Seconds between looks at cancellation, and between tellings of the progress."""


def open_executor(options: Workplace, grace: float = 0.0) -> Executor:
    """The executor of units; closing it stops all that it started. A worker is killed
    `grace` seconds beyond the deadline.

    Raises:
        JobError: Ray cannot be joined.
    """
    deadline = options.deadline + grace
    if not (address := options.cluster):
        return LocalExecutor(options.num_workers, deadline)
    from evofeed.featurize.job.ray_executor import RayExecutor

    return RayExecutor(options.workers, deadline, address)


class Dispatch(abc.ABC):
    """Units of a job given to an executor and taken back until all are done."""

    lost_workers = 0
    progress: Callable[[Any], None] | None
    lease: Lease | None
    """Of the dataset, renewed as long as units are at work."""
    _told = 0.0

    def take_up(
        self, ledger: Ledger, job_id: str, units: Iterable[Unit], options: Workplace
    ) -> None:
        """From now on this job, whose units to do are these."""
        self.ledger, self.job_id, self._cores = ledger, job_id, options.cores
        self.units = {unit.unit_id: unit for unit in units}
        self.blame = Blame(ledger, job_id, options.deadline)

    @abc.abstractmethod
    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> Task:
        """What a worker needs to do these items of a unit."""

    @abc.abstractmethod
    def settle(self, output: Any, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Enter what came of items of a unit; whether some of it is to be done yet.

        `is_trial`: they were sent without the rest, to see whether they kill a worker.
        """

    def resource(self, unit_id: str) -> str:
        """What the nodes that can do a unit offer, where some do; empty: any can."""
        return ""

    @abc.abstractmethod
    def how_far(self) -> Any:
        """What `progress` is called with, about twice a second and whenever a unit has ended."""

    def work_off(self, options: Workplace) -> bool:
        """Do all units that the ledger has to do; False if the job was cancelled meanwhile."""
        if not self.ledger.units(self.job_id, TODO):
            return True
        with contextlib.closing(open_executor(options)) as executor:
            return self.work(executor)

    def work(self, executor: Executor) -> bool:
        """Do all units; False if the job was cancelled meanwhile.

        Raises:
            ExecutorGone: what runs the units is.
            JobError: a unit failed for no item's fault, or lost its workers again and again.
        """
        waiting = [unit["unit_id"] for unit in self.ledger.units(self.job_id, TODO)]
        in_flight: dict[str, tuple[str, ...]] = {}
        ended: list[Any] = []
        while waiting or in_flight or ended:
            is_cancelled = self.ledger.job(self.job_id).cancel_requested
            if self.lease:
                self.lease.renew()
            sent = {outcome.unit_id: in_flight.pop(outcome.unit_id) for outcome in ended}
            while not is_cancelled and (unit_id := self._next(waiting, executor)):
                waiting.remove(unit_id)
                in_flight[unit_id] = self.remaining(unit_id)
                self.ledger.lease(self.job_id, unit_id)
                task = self.task(unit_id, in_flight[unit_id])
                executor.submit(task, self._cores, self.resource(unit_id))
            for outcome in ended:  # while the next units are at work
                if self._settle(outcome, sent[outcome.unit_id]):
                    waiting.append(outcome.unit_id)
            now = time.monotonic()
            if self.progress and (ended or now - self._told > TICK):
                self._told = now
                self.progress(self.how_far())
            if is_cancelled:
                return False
            ended = executor.wait(TICK) if in_flight or not ended else []
            ended.sort(key=lambda outcome: isinstance(outcome, UnitFailed))  # which ends the job
        return True

    def _next(self, waiting: Iterable[str], executor: Executor) -> str:
        """The first unit for which there is room; empty if there is none."""
        has_room = cache(executor.room)
        return next((unit for unit in waiting if has_room(self.resource(unit)) > 0), "")

    def remaining(self, unit_id: str) -> tuple[str, ...]:
        """Items of a unit to do next; suspects first, so that poison shows before work is done."""
        chains = self.ledger.chains(self.job_id, dead=None, unit_id=unit_id)
        is_dead = {chain["chain_id"]: chain["dead"] for chain in chains}
        ids = self.blame.suspects(unit_id) or self.units[unit_id].chain_ids
        alive = (item_id for item_id in ids if not is_dead.get(item_id))
        return tuple(sorted(alive, key=lambda item_id: item_id not in is_dead))

    def _settle(self, outcome: Any, item_ids: tuple[str, ...]) -> bool:
        if isinstance(outcome, UnitFailed):
            self.ledger.give_back(self.job_id, outcome.unit_id)
            raise outcome.error
        if isinstance(outcome, UnitLost):
            self.lost_workers += 1
            self.blame.lost(outcome, item_ids)
            return True
        return self.settle(outcome, item_ids, self.blame.was_trial(outcome.unit_id))


_STRIKES = 2
_STRIKES_FROM_OUTSIDE = 3  # SIGKILL and the end of a Ray worker also come from outside
_LOST_TOGETHER = 3  # times a unit may lose its worker, nobody knows over which item
_MAX_LOST = 6  # times a unit may lose its worker with no item to blame
_PARTS = 16  # that a unit is tried in then, and each of these that loses its worker again

_NOWHERE: dict[str, Any] = {"path": None, "line": None}


class Blame:
    """Who is to blame for a lost worker: the item in hand, the one that was alone, or nobody.

    A watcher knows which item (a chain, an entry, a sequence) its worker had in hand. When the
    watcher is lost too, nobody knows: such a unit is done again, and after some losses in parts,
    down to one item. That Ray itself is there was seen before (`ray_executor.py`).
    """

    def __init__(self, ledger: Ledger, job_id: str, deadline: float) -> None:
        self._ledger, self._job_id, self._deadline = ledger, job_id, deadline
        self._losses: Counter[tuple[str, tuple[str, ...]]] = Counter()  # by unit and suspects
        self._trials: dict[str, deque[tuple[str, ...]]] = {}  # by unit: parts still to be tried

    def suspects(self, unit_id: str) -> tuple[str, ...]:
        """The items that a unit is cut down to when it is done next; none for all."""
        return self._trials[unit_id][0] if unit_id in self._trials else ()

    def was_trial(self, unit_id: str) -> bool:
        """A unit ended well: whether those were suspects alone, who are cleared by it."""
        suspects = self.suspects(unit_id)
        self._clear(unit_id, suspects)
        return bool(suspects)

    def lost(self, lost: UnitLost, item_ids: Sequence[str]) -> None:
        """Enter a loss; the unit is to be done again: `item_ids` of it.

        Raises:
            JobError: the unit was lost too often, and none of its items is to blame.
        """
        unit_id, suspects = lost.unit_id, self.suspects(lost.unit_id)
        is_alone = lost.chain_id is None and len(suspects) == 1
        if item_id := suspects[0] if is_alone else lost.chain_id:
            self._strike(lost, item_id)
            return
        self._ledger.give_back(self._job_id, unit_id)
        self._losses[unit_id, suspects] += 1
        count = self._losses[unit_id, suspects]
        if count >= _MAX_LOST:
            raise JobError(
                f"{count} workers were lost over the same few chains, and none of these is to "
                f"blame ({lost.cause}); what is done is kept: see to the machine, its memory for "
                "one, and run it again"
            )
        if count == _LOST_TOGETHER and lost.chain_id is None and item_ids:
            size = -(-len(item_ids) // _PARTS)
            parts = [tuple(item_ids[n : n + size]) for n in range(0, len(item_ids), size)]
            self._clear(unit_id, suspects)
            self._trials[unit_id] = deque([*parts, *self._trials.get(unit_id, ())])

    def _strike(self, lost: UnitLost, item_id: str) -> None:
        seen = lost.cause == DEADLINE_KILL or lost.cause.startswith(("signal ", "exit "))
        limit = _STRIKES if seen and lost.cause != "signal SIGKILL" else _STRIKES_FROM_OUTSIDE
        if lost.cause == DEADLINE_KILL:
            what = f"took longer than {self._deadline:g} s, {limit} times"
        else:
            what = f"killed its worker {limit} times ({lost.cause})"
        failure = {"type": "WorkerKilled", "message": what, **_NOWHERE, "chain_id": item_id}
        if self._ledger.strike(self._job_id, lost.unit_id, failure, limit):
            self._clear(lost.unit_id, (item_id,))

    def _clear(self, unit_id: str, item_ids: Sequence[str]) -> None:
        """These need not be tried."""
        parts = self._trials.pop(unit_id, ())
        left = [tuple(item for item in part if item not in item_ids) for part in parts]
        if trials := deque(filter(None, left)):
            self._trials[unit_id] = trials

"""Who is to blame for a lost worker: the item in hand, the one that was alone, or nobody.

A watcher knows which item (a chain, an entry, a sequence) its worker had in hand. When the watcher
is lost too, nobody knows: such a unit is done again, and after some losses in parts, down to one
item. That Ray itself is there was seen before a loss is believed (`ray_executor.py`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from evofeed.base.errors import JobError
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.worker import DEADLINE_KILL, UnitLost

_STRIKES = 2
_STRIKES_FROM_OUTSIDE = 3  # SIGKILL and the end of a Ray worker also come from outside
_LOST_TOGETHER = 3  # times a unit may lose its worker, nobody knows over which item
_MAX_LOST = 6  # times a unit may lose its worker with no item to blame
_PARTS = 16  # that a unit is tried in then, and each of these that loses its worker again

_NOWHERE: dict[str, Any] = {"path": None, "line": None}


class Blame:
    """The losses of one run of a job.

    Args:
        ledger: gets the strikes.
        job_id: of the job.
        deadline: seconds an item may take, for the message.
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
        """Enter a loss; the unit is to be done again.

        Args:
            lost: what is known of it.
            item_ids: what the worker was given of the unit.

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

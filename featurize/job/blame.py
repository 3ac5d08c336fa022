"""Who is to blame for a lost worker: the chain in hand, the one that was alone, or nobody.

A watcher knows which chain its worker had in hand. When the watcher is lost too,
nobody knows: such a unit is done again, and after some losses chain by chain.
That Ray itself is there was seen before a loss is believed (`ray_executor.py`).
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
LOST_TOGETHER = 3  # times a unit may lose its worker, nobody knows over which chain
_MAX_LOST = 6  # times a unit may lose its worker with no chain to blame

_NOWHERE: dict[str, Any] = {"path": None, "line": None}


class Losses:
    """How often units lost their workers with nothing in hand to blame, jobs' and searches'."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def one_more(self, lost: UnitLost, *, alone: bool = False) -> int:
        """Count a loss; how many the unit has had.

        Args:
            lost: it.
            alone: what the unit held was one, and can be blamed.

        Raises:
            JobError: too many.
        """
        self.counts[lost.unit_id] += 1
        count = self.counts[lost.unit_id]
        if count >= _MAX_LOST and not alone:
            raise JobError(
                f"{count} workers were lost over the same few chains, and none of these is to "
                f"blame ({lost.cause}); what is done is kept: see to the machine, its memory for "
                "one, and run it again"
            )
        return count


class Blame:
    """The losses of one run of a job.

    Args:
        ledger: gets the strikes.
        job_id: of the job.
        deadline: seconds a chain may take, for the message.
    """

    def __init__(self, ledger: Ledger, job_id: str, deadline: float) -> None:
        self._ledger, self._job_id, self._deadline = ledger, job_id, deadline
        self._losses = Losses()
        self._alone: dict[str, deque[str]] = {}  # by unit: chains still to be tried one by one

    def suspect(self, unit_id: str) -> str:
        """The one chain that a unit is cut down to when it is done next; "" for all."""
        return self._alone[unit_id][0] if unit_id in self._alone else ""

    def was_trial(self, unit_id: str) -> bool:
        """A unit ended well: whether that was one suspect alone, who is cleared by it."""
        if unit_id not in self._alone:
            return False
        self._tried(unit_id)
        return True

    def lost(self, lost: UnitLost, chain_ids: Sequence[str]) -> None:
        """Enter a loss; the unit is to be done again.

        Args:
            lost: what is known of it.
            chain_ids: what the unit held.

        Raises:
            JobError: the unit was lost too often, and none of its chains is to blame.
        """
        chain_id = lost.chain_id
        if chain_id is None:
            chain_id = self.suspect(lost.unit_id)
        if chain_id:
            self._strike(lost, chain_id)
            return
        self._ledger.give_back(self._job_id, lost.unit_id)
        if self._losses.one_more(lost) == LOST_TOGETHER and lost.chain_id is None:
            self._alone[lost.unit_id] = deque(chain_ids)

    def _strike(self, lost: UnitLost, chain_id: str) -> None:
        seen = lost.cause == DEADLINE_KILL or lost.cause.startswith(("signal ", "exit "))
        limit = _STRIKES if seen and lost.cause != "signal SIGKILL" else _STRIKES_FROM_OUTSIDE
        if lost.cause == DEADLINE_KILL:
            what = f"took longer than {self._deadline:g} s, {limit} times"
        else:
            what = f"killed its worker {limit} times ({lost.cause})"
        failure = {"type": "WorkerKilled", "message": what, **_NOWHERE, "chain_id": chain_id}
        dead = self._ledger.strike(self._job_id, lost.unit_id, failure, limit)
        if dead and self.suspect(lost.unit_id) == chain_id:
            self._tried(lost.unit_id)

    def _tried(self, unit_id: str) -> None:
        self._alone[unit_id].popleft()
        if not self._alone[unit_id]:
            del self._alone[unit_id]

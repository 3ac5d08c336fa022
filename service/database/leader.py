"""Which of the processes on one database runs its jobs and searches its tickets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final, Protocol

from evofeed.service.database.database import Database
from evofeed.service.remembered import AWAY

_TICK: Final = 0.5


class Duty(Protocol):
    """What one process does for all."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """Stop, also if it never began."""


class Leader:
    """Begins the duties once this process holds the database's lock of that name.

    A lock ends with its process, or with its connection: then another process begins. This one
    goes on too until it holds the lock again, which harms nothing: whatever a duty takes up is
    taken in a transaction.
    """

    def __init__(self, database: Database, name: str, duties: Sequence[Duty]) -> None:
        self._database, self._name, self._duties = database, name, duties
        self.leads = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="evofeed-leader", daemon=True)

    def start(self) -> None:
        """Take the lock now, or wait for it in a thread."""
        self._look()
        self._thread.start()

    def close(self) -> None:
        """End the duties, then let others have them."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        for duty in self._duties:
            duty.close()
        self._database.unlock(self._name)

    def _wait(self) -> None:
        while not self._stop.wait(_TICK):
            self._look()

    def _look(self) -> None:
        try:
            holds = self._database.lock(self._name)
        except AWAY:
            return
        if holds and not self.leads:
            self.leads = True
            for duty in self._duties:
                duty.start()

"""Answers of the database, remembered for a moment or while it is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from evofeed.service.problems import Problem

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
AWAY: Final = (DBAPIError, PoolTimeout)
"""What SQLAlchemy raises while the database does not answer."""
TRUST: Final = 1.0
"""Seconds for which an answer is not asked for again: what others change is seen after that."""
_MOST: Final = 10_000
_PAUSE: Final = 1.0  # a database that did not answer is not waited for again for so long


class Remembered(Generic[_K, _V]):
    """The last answers by what was asked; safe to use from many threads.

    For `grace` seconds an answer counts while the database is away.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._answers: dict[_K, tuple[_V, float]] = {}
        self._changes = 0
        self._away_until = 0.0
        self._lock = threading.Lock()

    def known(self, key: _K) -> _V | None:
        """The answer, if it need not be asked for again."""
        found = self._answers.get(key)
        return found[0] if found and time.monotonic() < found[1] + TRUST else None

    def get(self, key: _K, ask: Callable[[], _V], *, without_database: bool = True) -> _V:
        """The answer of `ask`, or the last one where that is new enough or the database is away.

        Raises:
            Problem: of `ask`; what was known before is forgotten then, also while it is away.
            DBAPIError: the database is away, and nothing is known.
        """
        if (found := self.known(key)) is not None:
            return found
        old = self._answers.get(key) if without_database else None
        if old is not None and time.monotonic() > old[1] + self._grace:
            old = None
        if old is not None and time.monotonic() < self._away_until:
            return old[0]
        changes = self._changes
        try:
            answer = ask()
        except AWAY:
            self._away_until = time.monotonic() + _PAUSE
            if old is None:
                raise
            return old[0]
        except Problem:  # revoked, expired, removed
            self.forget(key)
            raise
        with self._lock:
            if changes == self._changes:  # else this may be what was true before
                if len(self._answers) >= _MOST:
                    self._answers.clear()
                self._answers[key] = answer, time.monotonic()
        return answer

    def forget(self, key: _K | None = None) -> None:
        """One answer (None: all of them) does not hold any more."""
        with self._lock:
            self._changes += 1
            if key is None:
                self._answers.clear()
            else:
                self._answers.pop(key, None)

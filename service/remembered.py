"""A short-lived cache of the database's answers, which bridges its outages."""

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
"""SQLAlchemy's errors while the database does not answer."""
TRUST: Final = 1.0
"""Seconds for which an answer is reused; other processes' changes are seen after that."""
_MOST: Final = 10_000
_PAUSE: Final = 1.0  # seconds until a database that did not answer is asked again


class Remembered(Generic[_K, _V]):
    """The last answer by key; safe to use from many threads.

    While the database is away, an answer is valid for `grace` seconds.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._answers: dict[_K, tuple[_V, float]] = {}
        self._changes = 0
        self._away_until = 0.0
        self._lock = threading.Lock()

    def cached(self, key: _K) -> _V | None:
        """The cached answer, if it is newer than `TRUST` seconds."""
        entry = self._answers.get(key)
        return entry[0] if entry and time.monotonic() < entry[1] + TRUST else None

    def get(self, key: _K, ask: Callable[[], _V], *, without_database: bool = True) -> _V:
        """The answer of `ask`, or the cached one if it is new enough or the database is away.

        Raises:
            Problem: from `ask`; the cached answer is then dropped, for outages too.
            DBAPIError: the database is away, and no answer is cached.
        """
        if (answered := self.cached(key)) is not None:
            return answered
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
        """Drop one answer (None: all of them)."""
        with self._lock:
            self._changes += 1
            if key is None:
                self._answers.clear()
            else:
                self._answers.pop(key, None)

"""What is remembered: answers of the database for a moment, or while it is away, and the last
things that were made of what never changes."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from evofeed.service.problems import Problem

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
AWAY: Final = (DBAPIError, PoolTimeout)
"""What SQLAlchemy raises while the database does not answer."""
_MOST: Final = 10_000
_PAUSE: Final = 1.0  # a database that did not answer is not waited for again for so long


class Remembered(Generic[_K, _V]):
    """The last answers by what was asked; safe to use from many threads.

    Args:
        trust: seconds for which an answer is not asked for again.
        grace: seconds for which it counts while the database is away.
    """

    def __init__(self, trust: float, grace: float) -> None:
        self._trust, self._grace = trust, grace
        self._answers: dict[_K, tuple[_V, float]] = {}
        self._changes = 0
        self._away_until = 0.0
        self._lock = threading.Lock()

    def known(self, key: _K) -> _V | None:
        """The answer, if it need not be asked for again."""
        found = self._answers.get(key)
        return found[0] if found and time.monotonic() < found[1] + self._trust else None

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


class Kept(Generic[_K, _V]):
    """As many of them as `limit`, the last that were asked for; safe to use from many threads."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """What is kept, or what `make` returns, which is kept from now on."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        value = make()  # outside the lock: a slow store holds up nobody else
        with self._lock:
            value = self._kept.setdefault(key, value)
            while len(self._kept) > self._limit:
                self._kept.popitem(last=False)
        return value

    def clear(self) -> None:
        """Let go of all."""
        with self._lock:
            self._kept.clear()

"""Whether anybody has written to the database since something was read from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

_AWAY_SECONDS: Final = 1.0  # a database that did not answer is not asked again for so long


@dataclass(slots=True)
class _Look:
    """What a look at the database said: the state, when, and after which write of ours."""

    state: Hashable | None
    at: float
    written: object
    renewed: bool = False
    """Somebody is about to look again."""


class Changes:
    """A database's state: something that is another thing once anybody has written.

    What was read while it was the same holds as long as it is. What this process writes is noticed
    at once, what others write within `trust`. Safe to use from many threads.

    Args:
        look: asks the database for its state; None where it cannot say.
        trust: seconds for which it is not asked again; from half of them on one of those who want
            to know asks, while the others go on.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        look: Callable[[], Hashable | None],
        trust: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._trust, self._clock = look, trust, clock
        self._lock = threading.Lock()
        self._written = object()  # another one after each write of ours
        self._last = _Look(None, -trust, None)

    def known(self) -> Hashable | None:
        """The state without waiting for anything; None for whoever has to call `state`."""
        last, now = self._last, self._clock()
        if last.written is not self._written or now >= last.at + self._trust:
            return None
        if now >= last.at + self._trust / 2 and not last.renewed:
            last.renewed = True
            return None
        return last.state

    def state(self) -> Hashable | None:
        """The state; None while the database does not say."""
        with self._lock:
            last, now = self._last, self._clock()
            new = last.written is self._written and now < last.at + self._trust / 2
            if new or (last.state is None and now < last.at):
                return last.state  # others have looked meanwhile
            written = self._written  # before the look: a write of ours may come while it lasts
            try:
                self._last = _Look(self._ask(), now, written)
            except BaseException:
                self._last = _Look(None, self._clock() + _AWAY_SECONDS, written)
                raise
            return self._last.state

    def wrote(self) -> None:
        """This process has written, and whoever made it write is about to be told."""
        self._written = object()

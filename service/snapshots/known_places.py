"""Where datasets are, asked of the database at most once a second each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from evofeed.service.work import require_thread

_MOST: Final = 10_000


class KnownPlaces:
    """Places by the names of their datasets: every request for bytes needs one.

    Args:
        ask: says where a dataset is.
        grace: seconds for which one that was asked for lately is known while the database is away.
        seconds: so late is noticed that another process has moved a name.
    """

    def __init__(self, ask: Callable[[str], str], grace: float, seconds: float) -> None:
        self._ask, self._grace, self._seconds = ask, grace, seconds
        self._known: dict[str, tuple[str, float]] = {}
        self._changed = object()  # another one after each change that this process made
        self._lock = threading.Lock()

    def known(self, name: str) -> str:
        """Where a dataset is, if that is known without asking; empty where it is not."""
        uri, until = self._known.get(name, ("", 0.0))
        return uri if time.monotonic() < until else ""

    def of(self, name: str) -> str:
        """Where a dataset is.

        Raises:
            Problem: 404.
        """
        uri, until = self._known.get(name, ("", 0.0))
        if time.monotonic() < until:
            return uri
        require_thread()
        changed = self._changed
        try:
            found = self._ask(name)
        except (DBAPIError, PoolTimeout):
            if not uri or time.monotonic() > until + self._grace:
                raise
            return uri
        with self._lock:
            if changed is self._changed:  # else what was read may be what was before
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[name] = found, time.monotonic() + self._seconds
        return found

    def forget(self, name: str) -> None:
        """This process has moved or removed a dataset."""
        with self._lock:
            self._changed = object()
            self._known.pop(name, None)

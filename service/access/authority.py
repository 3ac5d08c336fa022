"""Who tokens stand for, also while the database is away."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from evofeed.service.access.auth import Principal, authenticate_text
from evofeed.service.database.database import Database

_ASKED_EVERY: Final = 60.0  # seconds: when a token was last used is kept to the minute
_KNOWN: Final = 10_000  # tokens remembered for when the database is away


class Authority:
    """Who has been let in lately, for the while that the database may be away.

    Args:
        database: of tokens.
        grace: seconds for which what it last said still counts, for reading bytes only.
    """

    def __init__(self, database: Database, grace: float) -> None:
        self._database, self._grace = database, grace
        self._known: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        self._unchanged: dict[bytes, tuple[Principal, Hashable, float]] = {}
        self._away_until = 0.0
        self._lock = threading.Lock()

    def known(self, token: str, session: str) -> Principal | None:
        """The principal of a token, if nobody has written to the database since it was asked.

        None where that has to be asked. This waits for nothing.
        """
        state = self._database.changes.known()
        return None if state is None else self._known_in(state, _key(token, session))

    def _known_in(self, state: Hashable, key: bytes) -> Principal | None:
        found = self._unchanged.get(key)
        if found is None or state != found[1] or time.monotonic() > found[2]:
            return None
        expires = found[0].expires_at
        return found[0] if expires is None or expires > time.time() else None

    def principal(self, token: str, session: str, reads_bytes: bool) -> Principal:
        """The principal of a token or a browser's session.

        Raises:
            Problem: 401.
            DBAPIError: the database is away, and nothing is known of them.
        """
        key = _key(token, session)
        remembered = self._remembered(key) if reads_bytes else None
        if remembered is not None and time.monotonic() < self._away_until:
            return remembered  # it did not answer a moment ago: do not wait for it again
        try:
            state = self._database.changes.state()
            if state is not None and (known := self._known_in(state, key)) is not None:
                return known
            principal = authenticate_text(self._database, token, session)
        except (DBAPIError, PoolTimeout):
            self._away_until = time.monotonic() + 1.0
            if remembered is None:
                raise
            return remembered
        with self._lock:
            if state is not None and token:  # sessions end by themselves
                if len(self._unchanged) >= _KNOWN:
                    self._unchanged.clear()
                self._unchanged[key] = (principal, state, time.monotonic() + _ASKED_EVERY)
            self._known[key] = (principal, time.monotonic())
            self._known.move_to_end(key)
            while len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return principal

    def _remembered(self, key: bytes) -> Principal | None:
        with self._lock:
            principal, at = self._known.get(key, (None, 0.0))
        if principal is None or time.monotonic() > at + self._grace:
            return None
        ended = principal.expires_at is not None and principal.expires_at <= time.time()
        return None if ended else principal


def _key(token: str, session: str) -> bytes:
    return hashlib.sha256(f"{token}\n{session}".encode()).digest()

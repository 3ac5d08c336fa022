"""Bytes of answers, kept as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Kept(Generic[_K]):
    """The last answers, by what was asked.

    Args:
        nbytes: of all of them together.
    """

    def __init__(self, nbytes: int) -> None:
        self._room, self._used = nbytes, 0
        self._kept: OrderedDict[_K, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: _K) -> bytes | None:
        """What is kept, if it still is."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: _K, data: bytes) -> None:
        """Keep an answer; those that were not asked for the longest make room."""
        with self._lock:
            if key in self._kept or len(data) > self._room // 4:
                return
            self._kept[key] = data
            self._used += len(data)
            while self._used > self._room:
                self._used -= len(self._kept.popitem(last=False)[1])

    def get(self, key: _K, make: Callable[[], bytes]) -> bytes:
        """What is kept, or what `make` returns, which is kept from now on."""
        found = self.find(key)
        if found is None:
            self.keep(key, found := make())
        return found

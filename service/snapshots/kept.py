"""Answers, kept as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Kept(Generic[_K, _V]):
    """The last answers, by what was asked.

    Args:
        nbytes: of all of them together.
        size: bytes of an answer.
        share: an answer of more than this share of the room is not kept.
    """

    def __init__(self, nbytes: int, size: Callable[[_V], int], share: float = 0.25) -> None:
        self._room, self._size, self._largest, self._used = nbytes, size, share * nbytes, 0
        self._kept: OrderedDict[_K, _V] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: _K) -> _V | None:
        """What is kept, if it still is."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def keep(self, key: _K, data: _V) -> None:
        """Keep an answer; those that were not asked for the longest make room."""
        with self._lock:
            if key in self._kept or self._size(data) > self._largest:
                return
            self._kept[key] = data
            self._used += self._size(data)
            while self._used > self._room:
                self._used -= self._size(self._kept.popitem(last=False)[1])

    def get(self, key: _K, make: Callable[[], _V]) -> _V:
        """What is kept, or what `make` returns, which is kept from now on."""
        found = self.find(key)
        if found is None:
            self.keep(key, found := make())
        return found

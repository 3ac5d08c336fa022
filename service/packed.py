"""Compressed answers, kept as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable


class Packed:
    """The last answers that were compressed, by their tag.

    Args:
        nbytes: of all of them together.
    """

    def __init__(self, nbytes: int = 32 << 20) -> None:
        self._room, self._used = nbytes, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tag: str, make: Callable[[], bytes]) -> bytes:
        """What is kept under a tag, or what `make` returns, which is kept from now on."""
        with self._lock:
            if tag in self._kept:
                self._kept.move_to_end(tag)
                return self._kept[tag]
        made = make()
        with self._lock:
            if tag not in self._kept and len(made) <= self._room // 4:
                self._kept[tag] = made
                self._used += len(made)
            while self._used > self._room:
                self._used -= len(self._kept.popitem(last=False)[1])
        return made

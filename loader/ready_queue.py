"""Queue of finished batches that wait for their consumer."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from evofeed.loader.batch_maker import ReadyBatch

_LEFT: Final = 1
"""Batches still there when the feeder is woken to fill the queue again."""
_GRACE: Final = 0.002
"""Seconds that a woken feeder leaves the interpreter to the consumer, who begins its step."""


class ReadyQueue:
    """Finished batches, at most `most` of them. The feeder puts, the consumer takes.

    The feeder sleeps until all but one are gone and then makes several in a row: waking a
    thread whose data have left the caches costs more than making a batch. And it is woken
    only when the consumer has what it took: both need the interpreter's lock for that.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = min(_LEFT, most - 1)
        self._batches: deque[ReadyBatch | BaseException] = deque()
        self._filling = True
        self._closed = False
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._wanted = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, item: ReadyBatch | BaseException) -> None:
        """Add a batch, or the error that ends the stream."""
        with self._lock:
            self._batches.append(item)
            self._filling = len(self._batches) < self._most
            self._arrived.notify()

    def take(self, seconds: float) -> ReadyBatch | BaseException | None:
        """The oldest; None if nothing came for so long."""
        until = time.monotonic() + seconds
        with self._lock:
            while not self._batches:
                self._wake_feeder()
                if not self._arrived.wait(until - time.monotonic()):
                    return None
            return self._batches.popleft()

    def refill(self) -> None:
        """The consumer has what it took: if little is left, let the feeder go on."""
        with self._lock:
            if len(self._batches) <= self._left:
                self._wake_feeder()

    def _wake_feeder(self) -> None:
        if not self._filling:
            self._filling = True
            self._wanted.notify()

    def wait_for_room(self) -> bool:
        """Sleep while enough is there; False once the queue is closed."""
        with self._lock:
            slept = not self._filling
            while not self._filling and not self._closed:
                self._wanted.wait()
            enough = bool(self._batches)
        if slept and enough and not self._closed:
            time.sleep(_GRACE)
        return not self._closed

    def close(self) -> None:
        """Wake the feeder for good."""
        with self._lock:
            self._closed = True
            self._wanted.notify()

"""Queue of finished batches between the feeder thread and the consumer."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

from evofeed.loader.batch_maker import ReadyBatch

_REFILL_BELOW: Final = 2
"""The feeder is woken to fill the queue again when it has fewer batches than this."""
_YIELD_SECONDS: Final = 0.002
"""Time that a woken feeder leaves the interpreter to the consumer, which begins its step."""


class ReadyQueue:
    """Queue of at most `capacity` finished batches. The feeder puts, the consumer takes.

    The feeder sleeps until one batch is left and then makes several in a row: waking a thread
    with cold caches costs more than making a batch. It is woken only after the consumer has
    received its batch, as both need the interpreter lock.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._refill_below = min(_REFILL_BELOW, capacity)
        self._batches: deque[ReadyBatch | BaseException] = deque()
        self._filling = True
        self._closed = False
        self._lock = threading.Lock()
        self._not_empty = threading.Condition(self._lock)
        self._fill_requested = threading.Condition(self._lock)

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, item: ReadyBatch | BaseException) -> None:
        """Adds a batch, or the error that ends the stream."""
        with self._lock:
            self._batches.append(item)
            self._filling = len(self._batches) < self._capacity
            self._not_empty.notify()

    def take(self, timeout: float) -> ReadyBatch | BaseException | None:
        """The oldest item; None after `timeout` seconds without one."""
        deadline = time.monotonic() + timeout
        with self._lock:
            while not self._batches:
                self._wake_feeder()
                if not self._not_empty.wait(deadline - time.monotonic()):
                    return None
            return self._batches.popleft()

    def refill(self) -> None:
        """Wakes the feeder if few batches are left; called once the consumer has its batch."""
        with self._lock:
            if len(self._batches) < self._refill_below:
                self._wake_feeder()

    def _wake_feeder(self) -> None:
        if not self._filling:
            self._filling = True
            self._fill_requested.notify()

    def wait_for_space(self) -> bool:
        """Sleeps until batches are to be made; False once the queue is closed."""
        with self._lock:
            slept = not self._filling
            while not self._filling and not self._closed:
                self._fill_requested.wait()
            has_batches = bool(self._batches)
        if slept and has_batches and not self._closed:
            time.sleep(_YIELD_SECONDS)
        return not self._closed

    def close(self) -> None:
        """Closes the queue and wakes the feeder, which ends."""
        with self._lock:
            self._closed = True
            self._fill_requested.notify()

"""How often a principal may ask: a token bucket each, in memory."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from evofeed.service.problems import Problem

_MAX_BUCKETS = 10_000  # principals remembered; the longest silent ones are forgotten first


class RateLimiter:
    """Refuses what exceeds `rate` a second once `burst` is spent; says until when.

    Args:
        rate: requests a second; 0 refuses nothing.
        burst: requests at once.
        clock: seconds, monotonic.
    """

    def __init__(
        self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def spend(self, principal: str) -> None:
        """Take one request from a principal's bucket.

        Raises:
            Problem: 429 with Retry-After.
        """
        level = self._take(principal)
        if level < 0:
            raise self._refusal(-level / self._rate)

    def may_spend(self, principal: str) -> bool:
        """The same, as an answer."""
        return self._take(principal) >= 0

    def headers(self, principal: str) -> dict[str, str]:
        """`RateLimit-*` of a principal; none where nothing is limited."""
        if not self._rate:
            return {}
        with self._lock:
            level, then = self._buckets.get(principal, (float(self._burst), self._clock()))
            level = min(float(self._burst), level + (self._clock() - then) * self._rate)
        return {
            "RateLimit-Limit": str(self._burst),
            "RateLimit-Remaining": str(max(0, math.floor(level))),
            "RateLimit-Reset": str(math.ceil((self._burst - level) / self._rate)),
        }

    def _take(self, principal: str) -> float:
        """Requests left in the bucket; below 0 what is missing for this one, not taken."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock()
            level, then = self._buckets.pop(principal, (float(self._burst), now))
            level = min(float(self._burst), level + (now - then) * self._rate)
            left = level - 1.0
            self._buckets[principal] = (left if left >= 0 else level, now)
            if len(self._buckets) > _MAX_BUCKETS:
                self._buckets.popitem(last=False)
        return left

    def _refusal(self, seconds: float) -> Problem:
        wait = max(1, math.ceil(seconds))
        return Problem(
            429,
            "rate_limited",
            f"more than {self._rate:g} requests a second (burst {self._burst})",
            next=f"wait {wait} s; shard bytes are not counted",
            headers={"Retry-After": str(wait)},
        )

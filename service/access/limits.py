"""How often a principal may ask: a token bucket each, in memory that workers may share."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from evofeed.service.access.buckets import Bucket, Buckets, OwnBuckets, SharedBuckets
from evofeed.service.problems import Problem


class RateLimiter:
    """Refuses what exceeds `rate` a second once `burst` is spent; says until when.

    Args:
        rate: requests a second; 0 refuses nothing.
        burst: requests at once.
        file: of buckets that workers share; None: they are this process's own.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: Buckets = OwnBuckets() if file is None or not rate else SharedBuckets(file)

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
        with self._buckets:
            level = self._level(principal, self._clock())
        return {
            "RateLimit-Limit": str(self._burst),
            "RateLimit-Remaining": str(max(0, math.floor(level))),
            "RateLimit-Reset": str(math.ceil((self._burst - level) / self._rate)),
        }

    def _take(self, principal: str) -> float:
        """Requests left in the bucket; below 0 what is missing for this one, not taken."""
        if not self._rate:
            return 0.0
        with self._buckets:
            now = self._clock()
            level = self._level(principal, now)
            left = level - 1.0
            self._buckets.put(principal, Bucket(left if left >= 0 else level, now))
        return left

    def _level(self, principal: str, now: float) -> float:
        bucket = self._buckets.find(principal) or Bucket(float(self._burst), now)
        return min(float(self._burst), bucket.level + (now - bucket.then) * self._rate)

    def _refusal(self, seconds: float) -> Problem:
        what = f"more than {self._rate:g} requests a second (burst {self._burst})"
        hint = f"wait {max(1, math.ceil(seconds))} s; shard bytes are not counted"
        return Problem(429, "rate_limited", what, next=hint, wait=seconds)

"""Thread pools of endpoints, one per dataset, and the time limit of requests.

A store that hangs blocks the threads of its own dataset only. Work that walks
whole indexes has fewer threads, apart from those that hand out bytes, and one caller can
only have so much of it waiting. Threads that are stuck in a store are left behind, not
waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from evofeed.service.problems import Problem

_T = TypeVar("_T")
_THREADS: Final = 16  # per dataset, for short requests
_HEAVY_THREADS: Final = 2  # per dataset, for scans of its index, which are bound by cores
_MAX_POOLS: Final = 256  # the least recently used are closed
_MAX_WAITING: Final = 500  # requests per dataset
_NEVER: Final = float("inf")
_until: contextvars.ContextVar[float] = contextvars.ContextVar("evofeed_until")


class Work:
    """The threads of one service: `seconds` a request may take, `heavy` requests of one caller
    may wait or run at once."""

    def __init__(self, seconds: float, heavy: int) -> None:
        self.seconds, self._heavy = seconds, heavy
        self._pools: OrderedDict[tuple[str, bool], ThreadPoolExecutor] = OrderedDict()
        self._waiting: Counter[object] = Counter()

    async def run(
        self,
        function: Callable[[], _T],
        *,
        dataset: str = "",
        caller: str = "",
        heavy: bool = False,
        seconds: float | None = None,
    ) -> _T:
        """Run `function` in a thread of the dataset's pool (of a shared one without a dataset).

        Raises:
            Problem: 503, it took too long; as `require_room`.
        """
        seconds = self.seconds if seconds is None else seconds
        self.require_room(dataset, caller, heavy=heavy)
        keys: list[object] = [(dataset, heavy), *([("heavy", caller)] if heavy else [])]
        loop = asyncio.get_running_loop()
        context = contextvars.copy_context()
        context.run(_until.set, time.monotonic() + seconds)

        def finished(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the service has stopped
                loop.call_soon_threadsafe(self._waiting.subtract, keys)

        work = self._pool(dataset, heavy).submit(context.run, function)
        self._waiting.update(keys)
        work.add_done_callback(finished)  # also after the request has timed out
        try:
            async with asyncio.timeout(seconds) as clock:
                return await asyncio.wrap_future(work)
        except TimeoutError:
            if not clock.expired():  # the timeout is the store's
                raise
            raise too_slow(seconds) from None

    def require_room(self, dataset: str, caller: str, *, heavy: bool) -> None:
        """Raise if `run` would refuse the request, before its body is read."""
        if heavy and self._waiting[("heavy", caller)] >= self._heavy:
            raise _too_many(429, f"{self._heavy} such requests of yours wait or run already")
        if self._waiting[(dataset, heavy)] >= _MAX_WAITING:
            raise _too_many(503, f"{_MAX_WAITING} requests wait already")

    def close(self) -> None:
        """Stop accepting work, without waiting for blocked threads."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self, dataset: str, heavy: bool) -> ThreadPoolExecutor:
        key = (dataset, heavy)
        if key not in self._pools:
            threads = _HEAVY_THREADS if heavy else _THREADS
            self._pools[key] = ThreadPoolExecutor(threads, thread_name_prefix="evofeed-work")
            while len(self._pools) > _MAX_POOLS:
                self._pools.popitem(last=False)[1].shutdown(wait=False)
        self._pools.move_to_end(key)
        return self._pools[key]


def require_time() -> None:
    """Raise if the request has run out of time."""
    if time.monotonic() > _until.get(_NEVER):
        raise too_slow(None)


def too_slow(seconds: float | None) -> Problem:
    """The problem of a request that took too long."""
    message = f"no answer within {seconds:g} s" if seconds else "this takes too long"
    hint = "retry later, or ask for less at once; if it stays, the dataset's store hangs"
    return Problem(503, "too_slow", message, next=hint, wait=5)


def _too_many(status: int, message: str) -> Problem:
    hint = "wait for their answers, then ask again"
    return Problem(status, "too_many_at_once", message, next=hint, wait=1)

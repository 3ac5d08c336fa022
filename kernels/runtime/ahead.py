"""Kernels compiled side by side before a first step, instead of one after the other in it.

Within `compiled_ahead` a launch that Triton has not compiled yet hands its kernel to a thread and
launches nothing: the caller runs its step for its launches alone, and forgets what it gave. Triton
lets go of Python's lock while it lowers a kernel, so threads compile at the same time. Launches of
other threads, a loader's say, stay what they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

import torch

from evofeed.kernels.runtime import launching
from evofeed.kernels.runtime.backend import TensorDescriptor
from evofeed.kernels.runtime.private_apis import backward_runs


class Ahead:
    """Compiles what it is given in threads, each kind of launch once.

    Args:
        device: number of the GPU that is compiled for.
        threads: how many compile at a time.
    """

    def __init__(self, device: int, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "compile", torch.cuda.set_device, (device,))
        self._found: dict[tuple[Any, ...], Future[Any]] = {}
        self._lock = Lock()
        self._thread = get_ident()

    def add(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]
    ) -> bool:
        """Compile for a launch like this one, unless that is under way; False: not to be taken."""
        if get_ident() != self._thread and not backward_runs():  # it has a thread of its own
            return False
        key = (id(kernel), *map(_special, args), *meta.items())
        with self._lock:
            if key not in self._found:
                self._found[key] = self._pool.submit(kernel.warmup, *args, grid=grid, **meta)
        return True

    def finish(self) -> int:
        """Wait for all; returns how many. One that failed fails again where it is launched."""
        self._pool.shutdown()
        return sum(future.exception() is None for future in self._found.values())


@contextmanager
def compiled_ahead(device: torch.device) -> Iterator[Ahead]:
    """Kernels that are launched within are compiled, and those that were not before not run.

    Args:
        device: a GPU; the machine's processors are shared among its ranks.
    """
    share = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    ahead = Ahead(device.index or 0, max(1, len(os.sched_getaffinity(0)) // share))
    before, launching.elsewhere = launching.elsewhere, ahead.add
    try:
        yield ahead
    finally:
        launching.elsewhere = before
        ahead.finish()


def _special(arg: Any) -> Any:
    """What of an argument Triton compiles for: not the value of a number, nor an address."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if type(arg) is TensorDescriptor:
        return arg.base.dtype, *arg.block_shape
    if type(arg) is int:
        return arg == 1, arg % 16 == 0, arg.bit_length() > 31
    return type(arg)

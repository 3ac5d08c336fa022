"""Kernels compiled in parallel before the first step, instead of one after the other during it.

Inside `compiled_ahead`, a launch that Triton has not compiled yet hands its kernel to a thread and
launches nothing: the caller runs its step only to reach the launches, and discards the results.
Triton releases the GIL while it lowers a kernel, so threads compile in parallel. Launches from
other threads, a loader's for example, run as usual.
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


class AheadCompiler:
    """Compiles kernels in threads, each kind of launch once.

    Args:
        device: number of the GPU to compile for.
        threads: number of compiling threads.
    """

    def __init__(self, device: int, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "compile", torch.cuda.set_device, (device,))
        self._futures: dict[tuple[Any, ...], Future[Any]] = {}
        self._lock = Lock()
        self._thread = get_ident()

    def add(
        self, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: dict[str, Any]
    ) -> bool:
        """Compiles for a launch of this kind once; False if the launch must run as usual."""
        if get_ident() != self._thread and not backward_runs():  # a loader's
            return False
        key = (id(kernel), *map(_specialisation, args), *meta.items())
        with self._lock:
            if key not in self._futures:
                self._futures[key] = self._pool.submit(kernel.warmup, *args, grid=grid, **meta)
        return True

    def finish(self) -> int:
        """Waits for all threads; returns the number compiled. Errors are raised again at launch."""
        self._pool.shutdown()
        return sum(future.exception() is None for future in self._futures.values())


@contextmanager
def compiled_ahead(device: torch.device) -> Iterator[AheadCompiler]:
    """Compiles the kernels launched inside; those that were not compiled before do not run.

    Args:
        device: a GPU; the machine's processors are divided among its ranks.
    """
    share = max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    compiler = AheadCompiler(device.index or 0, max(1, len(os.sched_getaffinity(0)) // share))
    previous, launching.on_new_launch = launching.on_new_launch, compiler.add
    try:
        yield compiler
    finally:
        launching.on_new_launch = previous
        compiler.finish()


def _specialisation(arg: Any) -> Any:
    """Properties of an argument that Triton specialises on, without its value or address."""
    if isinstance(arg, torch.Tensor):
        return arg.dtype, arg.data_ptr() % 16 == 0
    if type(arg) is TensorDescriptor:
        return arg.base.dtype, *arg.block_shape
    if type(arg) is int:
        return arg == 1, arg % 16 == 0, arg.bit_length() > 31
    return type(arg)

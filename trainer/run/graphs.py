"""Forward and backward recorded once per shape of a batch and replayed as CUDA graphs.

The full model launches tens of thousands of kernels a step, most of them shorter
than the CPU needs to launch one; a replay launches all of them at once. Shapes are
fixed by the crop, so the number of recycles is the only thing that varies; on an
H200 the full step without recycling falls from 622 to 336 ms.
Random numbers stay right: a replay takes seed and offset from the generator, which
is seeded before every sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_MOST_RECORDINGS = 8  # whole chains have any length: those run eagerly from here on
Forward = Callable[[dict[str, Tensor]], tuple[Tensor, Tensor]]
"""From a batch the loss, and the numbers to report."""


class Replay:
    """Runs forward and backward of batches, through a graph from the second time on.

    The first batch of each kind runs eagerly, so that kernels get compiled and
    tuned; the second is recorded. All recordings share one memory pool: they run
    one after the other, and nothing but loss and numbers outlives a replay.

    Args:
        forward: see `Forward`; must not wait for the device.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._seen: set[tuple[torch.Size, ...]] = set()
        self._recorded: dict[tuple[torch.Size, ...], _Recording] = {}
        self._pool: Any = None

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        """Add the batch's gradients to `.grad`; `between` is called before the backward pass."""
        kind = tuple(value.shape for value in batch.values())
        known = kind in self._recorded
        if kind not in self._seen or (not known and len(self._recorded) >= _MOST_RECORDINGS):
            self._seen.add(kind)
            loss, numbers = self._forward(batch)
            between()
            torch.autograd.backward(loss)
            return numbers
        if not known:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._recorded[kind] = _Recording(self._forward, batch, self._pool)
        return self._recorded[kind](batch, between)


class _Recording:
    """One recorded forward and backward pass over its own copy of a batch."""

    def __init__(self, forward: Forward, batch: dict[str, Tensor], pool: Any) -> None:
        self._batch = {name: value.clone() for name, value in batch.items()}
        self._forward = torch.cuda.CUDAGraph()
        self._backward = torch.cuda.CUDAGraph()
        # thread_local: the loader's feeder thread goes on allocating and launching meanwhile.
        with torch.cuda.graph(self._forward, pool=pool, capture_error_mode="thread_local"):
            loss, self._numbers = forward(self._batch)
        with torch.cuda.graph(self._backward, pool=pool, capture_error_mode="thread_local"):
            torch.autograd.backward(loss)

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        for name, value in self._batch.items():
            value.copy_(batch[name], non_blocking=True)
        self._forward.replay()
        between()
        self._backward.replay()
        return self._numbers.clone()

"""Whether exchanges through the GPUs' own memory give what `torch.distributed` gives, tried once.

A fault there would not stop a run but spoil it, so every run looks before it relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchanged, gathered, reduced

SHAPE = (2, 257, 256, 64)  # with a last part that is shorter
TIMES = 3  # each of the two slots at least once
_LOG = logging.getLogger(__name__)


def checked(
    axis: Axis, device: torch.device, shape: tuple[int, int, int, int] = SHAPE, times: int = TIMES
) -> Axis:
    """The axis, without its memory (and a warning) if any bit of any exchange through it differs.

    All ranks of the axis must call it, and agree.

    Args:
        shape: what is exchanged, `[B, I, J, C]`.
        times: how often each kind of exchange is tried.
    """
    if axis.memory is None or axis.size == 1:
        return axis
    plain = replace(axis, memory=None)
    wrong = torch.zeros((), device=device)
    for call in _calls(axis.rank, device, shape):
        expected = call(plain)
        for found in (call(axis) for _ in range(times)):
            wrong += float(found.shape != expected.shape or not torch.equal(found, expected))
    dist.all_reduce(wrong, group=axis.group)
    if wrong.item():
        _LOG.warning("exchanges through the GPUs' own memory differ from NCCL's: NCCL is used")
        return plain
    return axis


def _calls(
    rank: int, device: torch.device, shape: tuple[int, int, int, int]
) -> Iterator[Callable[[Axis], Tensor]]:
    """Every kind of exchange of whole numbers, whose sums are exact in any type and order."""
    draws = torch.Generator().manual_seed(0)
    numbers = torch.randint(-8, 9, shape, generator=draws).to(device)
    for dtype in (torch.bfloat16, torch.float32):
        x = numbers.to(dtype)
        y = x * (1 + rank)
        for dim, n in ((-3, shape[-3]), (-2, shape[-2])):
            other = -5 - dim
            yield lambda axis: exchanged(axis.part(x, dim), axis, other, dim, n)  # noqa: B023
            yield lambda axis: gathered(axis.part(x, dim), axis, dim, n)  # noqa: B023
            yield lambda axis: reduced(y, axis, dim)  # noqa: B023

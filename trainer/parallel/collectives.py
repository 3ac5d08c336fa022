# mypy: disable-error-code="no-untyped-call"
"""Two exchanges between the ranks of an axis, each with its exact adjoint as backward pass.

They go through the memory of the axis where it has one (`evofeed.kernels.PeerMemory`) and they fit
there, else by `torch.distributed`.

What is differentiated is the *sum* of the ranks' losses. So nothing needs to know which
parameters worked on shards and which on the whole: the mean of all ranks' gradients is the
gradient of one rank's loss, for every parameter alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.trainer.parallel.axis import Axis

# Torch 2.13 has new names for these two, and warns of the old ones.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def exchange(x: Tensor, axis: Axis, *, split: int, join: int, length: int) -> Tensor:
    """A part along `split` of what was a part along `join`: one all-to-all.

    Args:
        x: whole along axis `split`, this rank's part along `join`.
        split: axis to cut, counted from the end.
        join: axis to put together, counted from the end.
        length: of the whole along `join`.
    """
    return _Exchange.apply(x, axis, split, join, length)  # type: ignore[no-any-return]


def gather(x: Tensor, axis: Axis, *, dim: int, length: int) -> Tensor:
    """The whole, on every rank, from everybody's part along `dim` (counted from the end)."""
    return _Gather.apply(x, axis, dim, length)  # type: ignore[no-any-return]


def exchanged(x: Tensor, axis: Axis, split: int, join: int, length: int) -> Tensor:
    """`exchange` without a gradient."""
    if axis.size == 1:
        return x
    sends, receives = axis.lengths(x.shape[split]), axis.lengths(length)
    memory = axis.memory_for(x, split, join, length)
    if memory is not None:
        mine: Tensor = memory.exchange(x.contiguous(), split, join, length)
        return mine
    shape = list(x.shape)
    shape[split] = sends[axis.rank]
    shapes = [_with(shape, join, n) for n in receives]
    sent = _packed(x, sends, split)
    received = x.new_empty(sum(map(math.prod, shapes)))
    others = x.numel() // x.shape[split] if x.shape[split] else 0
    dist.all_to_all_single(
        received, sent, [math.prod(s) for s in shapes], [n * others for n in sends],
        group=axis.group,
    )  # fmt: skip
    return _joined(received, shapes, join)


def gathered(x: Tensor, axis: Axis, dim: int, length: int) -> Tensor:
    """`gather` without a gradient."""
    if axis.size == 1:
        return x
    lengths = axis.lengths(length)
    most = lengths[0]
    memory = axis.memory_for(x, dim, dim, length)
    if memory is not None:
        whole: Tensor = memory.gather(x.contiguous(), dim, length)
        return whole
    mine = _padded(x, dim, most).contiguous()
    received = x.new_empty(axis.size * mine.numel())
    all_gather(received, mine.view(-1), group=axis.group)
    whole = _joined(received, [list(mine.shape)] * axis.size, dim)
    if length == most * axis.size:
        return whole
    parts = zip(whole.split(most, dim), lengths, strict=True)
    return torch.cat([part.narrow(dim, 0, n) for part, n in parts], dim)


def reduced(x: Tensor, axis: Axis, dim: int, out: Tensor | None = None) -> Tensor:
    """This rank's part along `dim` of the sum of everybody's whole: one reduce-scatter.

    Into `out`, contiguous, if it is given.
    """
    lengths = axis.lengths(x.shape[dim])
    most = lengths[0]
    memory = axis.memory_for(x, dim, dim, x.shape[dim])
    if out is not None and (axis.size == 1 or memory is None):
        return out.copy_(reduced(x, axis, dim))
    if axis.size == 1:
        return x
    if memory is not None:
        part: Tensor = memory.reduce(x.contiguous(), dim, out)
        return part
    if x.shape[dim] == most * axis.size:
        sent = _packed(x, lengths, dim)
    else:
        parts = [_padded(part, dim, most) for part in x.split(lengths, dim)]
        sent = torch.cat([part.reshape(-1) for part in parts])
    received = x.new_empty(_with(x.shape, dim, most))
    reduce_scatter(received.view(-1), sent, group=axis.group)
    return received.narrow(dim, 0, lengths[axis.rank]).contiguous()


class Others:
    """What the other ranks have along axis -2, for a fused operator on this one's part.

    Length, and mask where the operator asks for it, are of the whole.
    """

    def __init__(self, axis: Axis, length: int, mask: Tensor | None = None) -> None:
        self._axis, self._length = axis, length
        self.mask: Any = mask

    def gather(self, x: Tensor) -> Tensor:
        """The whole from everybody's part."""
        return gathered(x, self._axis, -2, self._length)

    def reduce(self, d: Tensor, out: Tensor | None = None) -> Tensor:
        """The adjoint: this rank's part of the sum of everybody's whole, into `out` if given."""
        return reduced(d, self._axis, -2, out)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, split: int, join: int, length: int) -> Tensor:
        ctx.back = axis, join, split, x.shape[split]
        return exchanged(x, axis, split, join, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return exchanged(grad, *ctx.back), None, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int, length: int) -> Tensor:
        ctx.back = axis, dim
        return gathered(x, axis, dim, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return reduced(grad, *ctx.back), None, None, None


def _with(shape: Sequence[int], dim: int, length: int) -> list[int]:
    changed = list(shape)
    changed[dim] = length
    return changed


def _packed(x: Tensor, lengths: Sequence[int], dim: int) -> Tensor:
    """Parts along `dim`, one behind the other; without a copy where they lie so already."""
    if math.prod(x.shape[:dim]) == 1:
        return x.reshape(-1)
    return torch.cat([part.reshape(-1) for part in x.split(list(lengths), dim)])


def _joined(flat: Tensor, shapes: Sequence[Sequence[int]], dim: int) -> Tensor:
    """The whole of parts that lie one behind the other; a view where it can be."""
    if math.prod(shapes[0][:dim]) == 1:
        return flat.view(_with(shapes[0], dim, sum(shape[dim] for shape in shapes)))
    parts = flat.split([math.prod(shape) for shape in shapes])
    return torch.cat([p.view(s) for p, s in zip(parts, map(list, shapes), strict=True)], dim)


def _padded(x: Tensor, dim: int, length: int) -> Tensor:
    if x.shape[dim] == length:
        return x
    padding = x.new_zeros(_with(x.shape, dim, length - x.shape[dim]))
    return torch.cat([x, padding], dim)

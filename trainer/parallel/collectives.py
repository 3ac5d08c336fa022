# mypy: disable-error-code="no-untyped-call"
"""All-to-all and all-gather over the ranks of an axis, each with its exact adjoint as backward.

They use the peer memory of the axis (`evofeed.kernels.PeerMemory`) if it has one and they fit
there, else `torch.distributed`.

The *sum* of the ranks' losses is differentiated. So no code needs to know which parameters worked
on shards and which on full tensors: the mean of all ranks' gradients is the gradient of one rank's
loss, for every parameter.
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
    """Reshards a tensor from axis `join` to axis `split`: one all-to-all.

    Args:
        x: full along axis `split`, this rank's part along `join`.
        split: axis to cut, counted from the end.
        join: axis to concatenate, counted from the end.
        length: full length along `join`.
    """
    return _Exchange.apply(x, axis, split, join, length)  # type: ignore[no-any-return]


def gather(x: Tensor, axis: Axis, *, dim: int, length: int) -> Tensor:
    """The full tensor, on every rank, from all ranks' parts along `dim` (counted from the end)."""
    return _Gather.apply(x, axis, dim, length)  # type: ignore[no-any-return]


def exchanged(x: Tensor, axis: Axis, split: int, join: int, length: int) -> Tensor:
    """`exchange` without a gradient."""
    if axis.size == 1:
        return x
    sends, receives = axis.lengths(x.shape[split]), axis.lengths(length)
    memory = axis.memory_for(x, split, join, length)
    if memory is not None:
        part: Tensor = memory.exchange(x.contiguous(), split, join, length)
        return part
    shape = list(x.shape)
    shape[split] = sends[axis.rank]
    shapes = [_with(shape, join, n) for n in receives]
    received = x.new_empty(sum(map(math.prod, shapes)))
    others = x.numel() // x.shape[split] if x.shape[split] else 0
    dist.all_to_all_single(
        received, _packed(x, sends, split), [math.prod(s) for s in shapes],
        [n * others for n in sends],
        group=axis.group,
    )  # fmt: skip
    return _joined(received, shapes, join)


def gathered(x: Tensor, axis: Axis, dim: int, length: int) -> Tensor:
    """`gather` without a gradient."""
    if axis.size == 1:
        return x
    lengths = axis.lengths(length)
    longest = lengths[0]
    memory = axis.memory_for(x, dim, dim, length)
    if memory is not None:
        full: Tensor = memory.gather(x.contiguous(), dim, length)
        return full
    part = _padded(x, dim, longest).contiguous()
    received = x.new_empty(axis.size * part.numel())
    all_gather(received, part.view(-1), group=axis.group)
    full = _joined(received, [list(part.shape)] * axis.size, dim)
    if length == longest * axis.size:
        return full
    parts = zip(full.split(longest, dim), lengths, strict=True)
    return torch.cat([part.narrow(dim, 0, n) for part, n in parts], dim)


def reduced(x: Tensor, axis: Axis, dim: int, out: Tensor | None = None) -> Tensor:
    """This rank's part along `dim` of the sum of all ranks' tensors: one reduce-scatter.

    Written to `out`, which must be contiguous, if it is given.
    """
    lengths = axis.lengths(x.shape[dim])
    longest = lengths[0]
    memory = axis.memory_for(x, dim, dim, x.shape[dim])
    if out is not None and (axis.size == 1 or memory is None):
        return out.copy_(reduced(x, axis, dim))
    if axis.size == 1:
        return x
    if memory is not None:
        part: Tensor = memory.reduce(x.contiguous(), dim, out)
        return part
    if x.shape[dim] == longest * axis.size:
        packed = _packed(x, lengths, dim)
    else:
        parts = [_padded(part, dim, longest) for part in x.split(lengths, dim)]
        packed = torch.cat([part.reshape(-1) for part in parts])
    received = x.new_empty(_with(x.shape, dim, longest))
    reduce_scatter(received.view(-1), packed, group=axis.group)
    return received.narrow(dim, 0, lengths[axis.rank]).contiguous()


class Others:
    """The collectives along axis -2 that a fused operator calls on this rank's part.

    `length`, and `mask` if the operator needs one, are those of the full tensor.
    """

    def __init__(self, axis: Axis, length: int, mask: Tensor | None = None) -> None:
        self._axis, self._length = axis, length
        self.mask: Any = mask

    def gather(self, x: Tensor) -> Tensor:
        """The full tensor from all ranks' parts."""
        return gathered(x, self._axis, -2, self._length)

    def reduce(self, d: Tensor, out: Tensor | None = None) -> Tensor:
        """The adjoint: this rank's part of the sum of all ranks' `d`, in `out` if given."""
        return reduced(d, self._axis, -2, out)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, split: int, join: int, length: int) -> Tensor:
        ctx.adjoint = axis, join, split, x.shape[split]
        return exchanged(x, axis, split, join, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return exchanged(grad, *ctx.adjoint), None, None, None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis, dim: int, length: int) -> Tensor:
        ctx.adjoint = axis, dim
        return gathered(x, axis, dim, length)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return reduced(grad, *ctx.adjoint), None, None, None


def _with(shape: Sequence[int], dim: int, length: int) -> list[int]:
    changed = list(shape)
    changed[dim] = length
    return changed


def _packed(x: Tensor, lengths: Sequence[int], dim: int) -> Tensor:
    """Parts along `dim`, one after the other, flat; a view if they are contiguous already."""
    if math.prod(x.shape[:dim]) == 1:
        return x.reshape(-1)
    return torch.cat([part.reshape(-1) for part in x.split(list(lengths), dim)])


def _joined(flat: Tensor, shapes: Sequence[Sequence[int]], dim: int) -> Tensor:
    """The tensor of flat parts, concatenated along `dim`; a view if possible."""
    if math.prod(shapes[0][:dim]) == 1:
        return flat.view(_with(shapes[0], dim, sum(shape[dim] for shape in shapes)))
    parts = flat.split([math.prod(shape) for shape in shapes])
    return torch.cat([p.view(s) for p, s in zip(parts, map(list, shapes), strict=True)], dim)


def _padded(x: Tensor, dim: int, length: int) -> Tensor:
    if x.shape[dim] == length:
        return x
    padding = x.new_zeros(_with(x.shape, dim, length - x.shape[dim]))
    return torch.cat([x, padding], dim)

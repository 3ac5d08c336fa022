"""The product inside a fused triangle multiplication, of pairs whose rows are sharded over ranks.

`RowProduct` sends one of the three matrices; `ChannelProduct` sends parts of all three, but never
holds a full one; `PrecomputedProduct` sends nothing. Letters: N residues, n of them on this rank,
E hidden channels, e of them on this rank, B batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import Others, exchanged

MAX_FULL_LENGTH = 1024  # residues up to which a full matrix of all channels is small: 268 MB
MAX_FULL_RANKS = 4  # with more ranks, parts of three matrices are less than one matrix
CHUNKS = 8  # of the channels, in place


def product_of(axis: Axis, length: int) -> ChannelProduct | RowProduct:
    """The product that sends less, if memory allows it."""
    small = length <= MAX_FULL_LENGTH and axis.size <= MAX_FULL_RANKS
    return RowProduct(axis, length) if small else ChannelProduct(axis, length)


class RowProduct(Others):
    """Rows of the product from rows of a and b.

    Outgoing edges need all rows of b: an all-gather. Incoming edges are a sum over the ranks'
    rows: a reduce-scatter. Each is the other's backward pass.
    """

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """The product's rows `[E, B, n, N]` from those of a and b `[2, E, B, n, N]`, and the
        tensors that `gradient` takes as `saved`.
        """
        a, b = ab
        if outgoing:  # x_ij = sum_k a_ik b_jk
            full = self.gather(b)
            return torch.matmul(a, full.mT), [a, full]
        return self.reduce(torch.matmul(a.mT, b)), [a, b]  # x_ij = sum_k a_ki b_kj

    def gradient(self, dproduct: Tensor, saved: list[Tensor], outgoing: bool) -> Tensor:
        """The gradient of `ab` from that of the product."""
        a, b = saved
        grads = a.new_empty(2, *a.shape)
        if outgoing:
            torch.matmul(dproduct, b, out=grads[0])
            self.reduce(torch.matmul(dproduct.mT, a), grads[1])
        else:
            d = self.gather(dproduct)
            torch.matmul(b, d.mT, out=grads[0])
            torch.matmul(a, d, out=grads[1])
        return grads


class ChannelProduct:
    """Full matrices of E / ranks channels on every rank: one all-to-all forth, one back.

    Both directions of the triangle send the same.
    """

    def __init__(self, axis: Axis, length: int) -> None:
        self._axis, self._length = axis, length

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """As `RowProduct`'s."""
        if self._axis.in_place and self._axis.size > 1:
            return self.in_place(ab, outgoing), []
        a, b = full = self._channels(ab)
        product = torch.matmul(a, b.mT) if outgoing else torch.matmul(a.mT, b)
        return self._rows(product, ab.shape[1]), [] if self._axis.in_place else [full]

    def in_place(self, ab: Tensor, outgoing: bool) -> Tensor:
        """The product without a gradient, written over a, some channels of every rank at a time."""
        size, E = self._axis.size, ab.shape[1]
        step = max(1, E // CHUNKS // size) * size
        for start in range(0, E, step):
            chunk = ab[:, start : start + step]
            a, b = self._channels(chunk)
            part = torch.matmul(a, b.mT) if outgoing else torch.matmul(a.mT, b)
            del a, b
            chunk[0] = self._rows(part, chunk.shape[1])
        return ab[0]

    def gradient(self, dproduct: Tensor, saved: list[Tensor], outgoing: bool) -> Tensor:
        """As `RowProduct`'s."""
        (full,) = saved
        d, (a, b) = self._channels(dproduct), full
        grads = torch.empty_like(full)
        if outgoing:
            torch.matmul(d, b, out=grads[0])
            torch.matmul(d.mT, a, out=grads[1])
        else:
            torch.matmul(b, d.mT, out=grads[0])
            torch.matmul(a, d, out=grads[1])
        return self._rows(grads, dproduct.shape[0])

    def _channels(self, x: Tensor) -> Tensor:
        return exchanged(x, self._axis, -4, -2, self._length)

    def _rows(self, x: Tensor, channels: int) -> Tensor:
        return exchanged(x, self._axis, -2, -4, channels)


class PrecomputedProduct:
    """A product of a chunk of the pairs without communication or gradient.

    From its rows `[E, B, I, N]`, or from a function that makes them from the chunk's sides.
    """

    def __init__(self, rows: Tensor | Callable[[Tensor], Tensor]) -> None:
        self._rows = rows

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """As `RowProduct`'s."""
        rows = self._rows
        return rows.contiguous() if isinstance(rows, Tensor) else rows(ab), []

    def gradient(self, dproduct: Tensor, saved: list[Tensor], outgoing: bool) -> Tensor:
        """Never called: only evaluation without a gradient uses it."""
        raise NotImplementedError("a precomputed product has no gradient")

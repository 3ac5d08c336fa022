"""The product inside a fused triangle multiplication of pairs whose rows several ranks have.

`RowProduct` sends one of the three matrices, `ChannelProduct` parts of all three, but never has a
whole one; the others send nothing. Letters: N residues, n of them here, E hidden channels, e of
them here, B batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import Others, exchanged

MOST_WHOLE = 1024  # residues up to which a whole matrix of all channels is small: 268 MB
MOST_RANKS = 4  # beyond, parts of three matrices are less than one
PARTS = 8  # of the channels, where memory counts


def product_of(axis: Axis, length: int) -> ChannelProduct | RowProduct:
    """The one that sends less, where memory allows."""
    small = length <= MOST_WHOLE and axis.size <= MOST_RANKS
    return RowProduct(axis, length) if small else ChannelProduct(axis, length)


class RowProduct(Others):
    """Rows of the product from rows of a and b.

    Outgoing edges need all rows of b: a gather. Incoming ones are a sum over the rows that
    the ranks have: a reduce-scatter. Each is the other's backward pass.
    """

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """The product's rows `[E, B, n, N]` of those of a and b `[2, E, B, n, N]`.

        Also what `gradient` takes.
        """
        a, b = ab
        if outgoing:  # x_ij = sum_k a_ik b_jk
            whole = self.gather(b)
            return torch.matmul(a, whole.mT), [a, whole]
        return self.reduce(torch.matmul(a.mT, b)), [a, b]  # x_ij = sum_k a_ki b_kj

    def gradient(self, dproduct: Tensor, kept: list[Tensor], outgoing: bool) -> Tensor:
        """The gradient of `ab` from that of the product."""
        a, b = kept
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
    """Whole matrices of a few channels for every rank: one all-to-all there, one back.

    Both directions of the triangle are alike.
    """

    def __init__(self, axis: Axis, length: int) -> None:
        self._axis, self._length = axis, length

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """As `RowProduct`'s."""
        if self._axis.in_place and self._axis.size > 1:
            return self.over(ab, outgoing), []
        a, b = whole = self._channels(ab)
        product = torch.matmul(a, b.mT) if outgoing else torch.matmul(a.mT, b)
        return self._rows(product, ab.shape[1]), [] if self._axis.in_place else [whole]

    def over(self, ab: Tensor, outgoing: bool) -> Tensor:
        """The product without a gradient, in a's place: a few channels of every rank at a time."""
        size, E = self._axis.size, ab.shape[1]
        step = max(1, E // PARTS // size) * size
        for start in range(0, E, step):
            some = ab[:, start : start + step]
            a, b = self._channels(some)
            part = torch.matmul(a, b.mT) if outgoing else torch.matmul(a.mT, b)
            del a, b
            some[0] = self._rows(part, some.shape[1])
        return ab[0]

    def gradient(self, dproduct: Tensor, kept: list[Tensor], outgoing: bool) -> Tensor:
        """As `RowProduct`'s."""
        (whole,) = kept
        d, (a, b) = self._channels(dproduct), whole
        grads = torch.empty_like(whole)
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


class Known:
    """What needs nobody: of parts of the pairs, without a gradient.

    Of the product's rows `[E, B, I, N]`, or what makes them of both sides and what is known.
    """

    def __init__(self, rows: Tensor | Callable[[Tensor], Tensor]) -> None:
        self._rows = rows

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, list[Tensor]]:
        """As `RowProduct`'s."""
        rows = self._rows
        return rows.contiguous() if isinstance(rows, Tensor) else rows(ab), []

    def gradient(self, dproduct: Tensor, kept: list[Tensor], outgoing: bool) -> Tensor:
        """Never asked for: nothing learns from what is known already."""
        raise NotImplementedError("a product of what is known has no gradient")

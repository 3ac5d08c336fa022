"""The two slowest terms of the loss, each computed by one of the ranks that share a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from evofeed.trainer.losses import AlphaFoldLoss
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import gathered

SHARED = ("violation", "fape")


def share_losses(loss: AlphaFoldLoss, axis: Axis) -> AlphaFoldLoss:
    """Assigns the violation and FAPE terms to one rank each, in place; returns the loss.

    Every rank gets every value. Only the owner has a term's gradient, times the number of ranks:
    the mean over the ranks is the same as without sharing.
    """
    for number, name in enumerate(SHARED):
        term = partial(_term, getattr(loss, f"_{name}"), axis, number % axis.size)
        setattr(loss, f"_{name}", term)
    loss.terms = partial(_terms, loss.terms, axis)  # type: ignore[method-assign]
    return loss


def _terms(
    make: Callable[..., dict[str, Tensor]], axis: Axis, *arguments: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """All terms of each sample; ranks wait for each other after computing their own."""
    terms = make(*arguments)
    return terms | {name: _OwnersValue.apply(terms[name], axis) for name in SHARED}  # type: ignore[no-untyped-call]


def _term(
    make: Callable[..., Tensor], axis: Axis, owner: int, sm: Mapping[str, Tensor],
    feats: Mapping[str, Tensor],
) -> Tensor:  # fmt: skip
    """A term of each sample `[*]`; zeros if another rank owns it."""
    if axis.rank == owner:
        return make(sm, feats)
    return sm["positions"].new_zeros(feats["aatype"].shape[:-1])


class _OwnersValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, term: Tensor, axis: Axis) -> Tensor:
        ctx.ranks = axis.size
        rows = gathered(term.reshape(1, -1), axis, -2, axis.size)
        return rows.sum(0).view(term.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.ranks, None

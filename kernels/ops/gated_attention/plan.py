"""What is no tensor of a gated attention, and how q, k, v, gate and bias lie side by side.

Letters: B batch, R and N the two position axes, C channels, H heads, D head width.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from evofeed.kernels.runtime.projection import Drop, pack


class OtherPairs(Protocol):
    """The attention bias of all pairs, of which several GPUs have some each."""

    def gather(self, bias: Tensor) -> Tensor:
        """`[B, H, N, N]` from the rows `[B, H, n, N]` made here."""

    def reduce(self, dbias: Tensor) -> Tensor:
        """The adjoint of `gather`."""


class Plan(NamedTuple):
    """Options of one call."""

    heads: int
    eps: float
    columns: bool  # axis R attends, not axis N
    turned: bool  # the bias of query q and key k is made from the pair (k, q)
    residual: bool
    drop_columnwise: bool
    bias_scale: float
    dtype: torch.dtype

    @property
    def transposes(self) -> bool:
        """Whether the bias made here is the transpose of what x's positions give."""
        return self.columns != self.turned

    def drop(self, mask: Tensor | None, x: Tensor) -> Drop:
        """A dropout mask and how it is spread over x."""
        return Drop(mask, (x.shape[1], x.shape[2]), self.drop_columnwise)


def attending_last(t: Tensor, plan: Plan) -> Tensor:
    """`[B, rows, N, ...]` view of a `[B, R, N, ...]` tensor: the attending axis last."""
    return t.transpose(1, 2) if plan.columns else t


def split_heads(packed: Tensor, like: Tensor, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as `[B, rows, N, H, D]` views of a packed `[M, 4 H D or more]` tensor."""
    B, R, N, H, D = like.shape
    s_m = packed.stride(0)
    strides = (R * N * s_m, N * s_m, s_m, D, 1)
    parts = [packed.as_strided((B, R, N, H, D), strides, n * H * D) for n in range(3)]
    q, k, v = (attending_last(part, plan) for part in parts)
    return q, k, v


def pack_projections(parts: list[Tensor], pair: Tensor | None, dtype: torch.dtype) -> Tensor:
    """q, k, v, gate and pair weights as one matrix, 16 rows at least for the last.

    Rows of the gradient are then a multiple of 16 numbers: Triton loads them 16 bytes wide.
    """
    if pair is None:
        return pack(parts, dtype)
    parts = [*parts, pair]
    return pack(parts, dtype, sum(part.shape[0] for part in parts) + -pair.shape[0] % 16)

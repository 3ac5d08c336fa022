"""Arguments shared by the attention kernels, and the width of their offsets.

A program adds its row's and head's offset once, always in 64 bits; for every tile it computes a
position times that axis's stride. In 64 bits this costs 1 to 5 % of attention's time
(H200, benchmarks/results/attention_offsets_h200.json), and few inputs need it: the columns of
pairs of more than 2,000 residues.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.ops.attention.triton import LOG2E
from evofeed.kernels.runtime.projection import padded, precision
from evofeed.kernels.runtime.tiles import Tile

LIMIT = 2**31
MAX_TILE = 128  # rows or columns of any saved tile, as the last tile may be padded


class MaskTerms(NamedTuple):
    """A mask in the form that the kernels read.

    Attributes:
        term: `[B * R, N or more]`, added to the logits of a row's keys; 0 beyond N.
        factor: `[B * R]` float32, factor of a row's logits; 0 where no key is valid.
    """

    term: Tensor
    factor: Tensor


class BackwardInputs(NamedTuple):
    """Inputs and outputs of the kernels of a backward pass.

    Attributes:
        do: gradient of the output, `[B, R, Q, H, D]` view.
        q, k, v, bias, mask: as in the forward pass.
        lse: log-sum-exp from the forward pass.
        delta: sum of o * do over the head width, `[B * R, H, Q]` float32.
        scale: factor of the dot products.
        grads: three `[B, R, N, H, D]` views with equal strides, to fill.
    """

    do: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: MaskTerms | None
    lse: Tensor
    delta: Tensor
    scale: float
    grads: tuple[Tensor, Tensor, Tensor]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """The inputs, in the order of the kernels' arguments."""
        mask = self.mask or (None, None)
        return self.q, self.k, self.v, self.bias, *mask, self.do, self.lse, self.delta

    def scalars(self) -> tuple[float, ...]:
        """Strides and sizes, in the order of the kernels' arguments."""
        return (
            *self.q.stride()[:4], *self.grads[0].stride()[:4], *self.do.stride()[:4],
            *bias_strides(self.bias), term_stride(self.mask), self.q.shape[1], self.q.shape[3],
            self.q.shape[2], self.k.shape[2], self.scale * LOG2E, float(self.scale),
        )  # fmt: skip

    def options(self, tile: Tile) -> dict[str, Any]:
        """Compile-time arguments for one tile."""
        return options(tile, self.q, self.k, self.bias, self.mask, self.do, self.grads[0])


def bias_strides(bias: Tensor | None) -> tuple[int, int, int]:
    """Strides of the bias, zeros without one."""
    return (0, 0, 0) if bias is None else (bias.stride(0), bias.stride(1), bias.stride(2))


def term_stride(mask: MaskTerms | None) -> int:
    """Stride between rows of a mask's terms, 0 without a mask."""
    return 0 if mask is None else mask.term.stride(0)


def options(
    tile: Tile, q: Tensor, k: Tensor, bias: Tensor | None, mask: MaskTerms | None, *others: Tensor
) -> dict[str, Any]:
    """Compile-time arguments of the kernels for any card."""
    return {
        "D": q.shape[-1], "BLOCK_D": padded(q.shape[-1]), "BLOCK_Q": tile.rows,
        "BLOCK_K": tile.columns, "HAS_BIAS": bias is not None, "HAS_MASK": mask is not None,
        "PAD": k.shape[2] % tile.columns != 0, "PRECISION": precision(q.dtype),
        "WIDE": is_wide(bias, q, k, *others),
        "num_warps": tile.warps,
        # One stage gave wrong numbers (Triton 3.6, sm_90, head width 8, 64 keys, 16 bits).
        "num_stages": tile.stages if q.dtype is torch.float32 else max(2, tile.stages),
    }  # fmt: skip


def is_wide(bias: Tensor | None, *views: Tensor) -> bool:
    """True if a position times a stride may exceed 2^31.

    Args:
        bias: `[B, H, Q, K]`, or None; its gradient has Q rows of K numbers too.
        views: `[B, R, N, H, D]`, tensors that the kernels read or write by position.
    """
    longest = 0
    for t in views:
        _, _, N, H, _ = t.shape
        _, _, per_position, per_head, _ = t.stride()
        longest = max(longest, (N + MAX_TILE) * per_position + H * per_head)
    if bias is not None:
        longest = max(longest, (bias.shape[2] + MAX_TILE) * max(bias.stride(2), bias.shape[3]))
    return longest + MAX_TILE > LIMIT

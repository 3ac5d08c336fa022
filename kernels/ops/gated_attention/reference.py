"""`gated_attention` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.attention.reference import biased_attention
from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AttentionWeights", "gated_attention"]


@dataclass(frozen=True, slots=True)
class AttentionWeights(Parameters):
    """Parameters of one gated attention, as OpenFold names them; g_bias and o_bias may be None."""

    biases: ClassVar[dict[str, str]] = {"g_bias": "g", "o_bias": "o"}
    norm_weight: Tensor
    norm_bias: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    g_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    pair: Tensor | None = None
    """`[H, C]`: the attention bias is a product of the same normalised input."""


def gated_attention(
    x: Tensor,
    weights: AttentionWeights,
    heads: int,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    columns: bool = False,
    turned: bool = False,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    drop_columnwise: bool = False,
    bias_scale: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """One gated attention of AF2 with its norm, output, dropout and residual."""
    if columns:
        mask = None if mask is None else mask.transpose(1, 2)
        update = gated_attention(
            x.transpose(1, 2), weights, heads, bias=bias, mask=mask, turned=turned,
            bias_scale=bias_scale, eps=eps,
        ).transpose(1, 2)  # fmt: skip
    else:
        xn = layer_norm(x, weights.norm_weight, weights.norm_bias, eps)
        bias = None if bias is None else bias / bias_scale
        if weights.pair is not None:
            bias = F.linear(xn, weights.pair).movedim(-1, 1)
            bias = bias.transpose(-1, -2) if turned else bias
        q, k, v = (_heads(F.linear(xn, w), heads) for w in (weights.q, weights.k, weights.v))
        o = biased_attention(q, k, v, bias, mask).flatten(-2)
        gate = torch.sigmoid(F.linear(xn, weights.g, weights.g_bias))
        update = F.linear(gate * o, weights.o, weights.o_bias)
    if drop_mask is not None:
        update = update * (drop_mask[:, :, None] if drop_columnwise else drop_mask[:, None])
    return x + update if residual else update


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1)

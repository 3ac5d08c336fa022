"""`global_column_attention` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.layer_norm.reference import layer_norm

__all__ = ["global_column_attention"]


def global_column_attention(
    x: Tensor,
    weights: AttentionWeights,
    heads: int,
    mask: Tensor,
    *,
    residual: bool = False,
    norm_eps: float = 1e-5,
    eps: float = 1e-8,
) -> Tensor:
    """One query a column and head, the mean of its sequences; keys and values shared by heads."""
    w = weights
    xn = layer_norm(x, w.norm_weight, w.norm_bias, norm_eps).transpose(1, 2)  # residues first
    valid = mask.transpose(1, 2)[..., None].to(x.dtype)
    mean = (xn * valid).sum(2) / (valid.sum(2) + eps)
    q = _heads(F.linear(mean, w.q), heads)
    k, v = F.linear(xn, w.k), F.linear(xn, w.v)
    s = (
        torch.einsum("brhd,brsd->brhs", q, k).to(torch.promote_types(x.dtype, torch.float32))
        * q.shape[-1] ** -0.5
    )
    s = torch.where(valid[..., 0][:, :, None] > 0.5, s, -1e9)
    o = torch.einsum("brhs,brsd->brhd", torch.softmax(s, -1).to(x.dtype), v).flatten(-2)
    gate = torch.sigmoid(F.linear(xn, w.g, w.g_bias))
    update = F.linear(gate * o[:, :, None], w.o, w.o_bias).transpose(1, 2)
    return x + update if residual else update


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1)

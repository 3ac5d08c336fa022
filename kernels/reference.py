"""The fused ops in plain PyTorch, slow and obvious: what the kernels are checked against.

Each function takes the arguments of the fused op of the same name. They run in
the dtype they are given, float64 included.

Letters: S sequences, R residues, R rows that attend, N positions of a row,
H heads, D head width, C channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from evofeed.kernels.feed_forward import TransitionWeights
    from evofeed.kernels.gated import AttentionWeights
    from evofeed.kernels.outer import OuterWeights
    from evofeed.kernels.triangle import TriangleWeights

__all__ = [
    "biased_attention",
    "gated_attention",
    "global_column_attention",
    "layer_norm",
    "masked_softmax",
    "outer_product_mean",
    "pair_bias",
    "transition",
    "triangle_multiplication",
]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, affine."""
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps)


def biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T + bias, masked) v for `[B, R, N, H, D]`.

    A masked key gets -1e9 added. In float32 that swallows the logits of a row
    with no valid key, which then attends uniformly to all keys while gradients
    still pass; written out here so that float64 does the same.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = torch.einsum("binhd,bimhd->bihnm", q, k).to(_at_least_float32(q)) * scale
    if bias is not None:
        s = s + bias[:, None].to(s.dtype)
    if mask is not None:
        valid = (mask > 0.5)[:, :, None, None, :]
        none = ~valid.any(-1, keepdim=True)
        s = torch.where(none, s - s.detach(), s + torch.where(valid, 0.0, -1e9).to(s.dtype))
    p = torch.softmax(s, -1).to(q.dtype)
    return torch.einsum("bihnm,bimhd->binhd", p, v)


def gated_attention(
    x: Tensor,
    weights: AttentionWeights,
    heads: int,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    columns: bool = False,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    drop_columnwise: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """One gated attention of AF2 with its norm, output, dropout and residual."""
    if columns:
        mask = None if mask is None else mask.transpose(1, 2)
        update = gated_attention(
            x.transpose(1, 2), weights, heads, bias=bias, mask=mask, eps=eps
        ).transpose(1, 2)
    else:
        xn = layer_norm(x, weights.norm_weight, weights.norm_bias, eps)
        if weights.pair is not None:
            bias = F.linear(xn, weights.pair).movedim(-1, 1)
        q, k, v = (_heads(F.linear(xn, w), heads) for w in (weights.q, weights.k, weights.v))
        o = biased_attention(q, k, v, bias, mask).flatten(-2)
        gate = torch.sigmoid(F.linear(xn, weights.g, weights.g_bias))
        update = F.linear(gate * o, weights.o, weights.o_bias)
    if drop_mask is not None:
        update = update * (drop_mask[:, :, None] if drop_columnwise else drop_mask[:, None])
    return x + update if residual else update


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
    s = torch.einsum("brhd,brsd->brhs", q, k).to(_at_least_float32(x)) * q.shape[-1] ** -0.5
    s = torch.where(valid[..., 0][:, :, None] > 0.5, s, -1e9)
    o = torch.einsum("brhs,brsd->brhd", torch.softmax(s, -1).to(x.dtype), v).flatten(-2)
    gate = torch.sigmoid(F.linear(xn, w.g, w.g_bias))
    update = F.linear(gate * o[:, :, None], w.o, w.o_bias).transpose(1, 2)
    return x + update if residual else update


def pair_bias(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> Tensor:
    """Attention bias of the normalised pairs, heads first."""
    return scale * F.linear(layer_norm(z, norm_weight, norm_bias, eps), weight).movedim(-1, 1)


def transition(
    x: Tensor,
    weights: TransitionWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Norm, two layers with relu between, mask, residual."""
    w = weights
    hidden = F.linear(layer_norm(x, w.norm_weight, w.norm_bias, eps), w.w1, w.b1).relu()
    update = F.linear(hidden, w.w2, w.b2)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return x + update if residual else update


def triangle_multiplication(
    z: Tensor,
    weights: TriangleWeights,
    *,
    outgoing: bool,
    mask: Tensor | None = None,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Gated projections, product over the third residue, norm, gated output."""
    w = weights
    zn = layer_norm(z, w.norm_in_weight, w.norm_in_bias, eps)
    a = torch.sigmoid(F.linear(zn, w.a_g, w.a_g_bias)) * F.linear(zn, w.a_p, w.a_p_bias)
    b = torch.sigmoid(F.linear(zn, w.b_g, w.b_g_bias)) * F.linear(zn, w.b_p, w.b_p_bias)
    if mask is not None:
        a, b = a * mask[..., None].to(a.dtype), b * mask[..., None].to(b.dtype)
    x = torch.einsum("bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc", a, b)
    xn = layer_norm(x, w.norm_out_weight, w.norm_out_bias, eps)
    update = F.linear(xn, w.z, w.z_bias) * torch.sigmoid(F.linear(zn, w.g, w.g_bias))
    update = update if drop_mask is None else update * drop_mask[:, None].to(update.dtype)
    return z + update if residual else update


def outer_product_mean(
    m: Tensor,
    weights: OuterWeights,
    mask: Tensor,
    *,
    z: Tensor | None = None,
    eps: float = 1e-3,
    norm_eps: float = 1e-5,
) -> Tensor:
    """Projected sum of outer products over the number of shared sequences, plus z."""
    w = weights
    mn = layer_norm(m, w.norm_weight, w.norm_bias, norm_eps)
    a = F.linear(mn, w.w1, w.b1) * mask[..., None].to(m.dtype)
    b = F.linear(mn, w.w2, w.b2) * mask[..., None].to(m.dtype)
    outer = torch.einsum("bsic,bsje->bijce", a, b).flatten(-2)
    counts = mask.to(_at_least_float32(m))
    shared = torch.einsum("bsi,bsj->bij", counts, counts)[..., None] + eps
    update = (F.linear(outer, w.out, w.out_bias) / shared).to(m.dtype)
    return update if z is None else z + update


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:-1], heads, -1)


def _at_least_float32(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def masked_softmax(x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax over keys of x + bias, masked keys at -1e9."""
    s = x.to(_at_least_float32(x))
    if bias is not None:
        s = s + bias[:, None].to(s.dtype)
    if mask is not None:
        valid = (mask > 0.5)[:, :, None, None, :]
        none = ~valid.any(-1, keepdim=True)
        s = torch.where(none, s - s.detach(), s + torch.where(valid, 0.0, -1e9).to(s.dtype))
    return torch.softmax(s, -1).to(x.dtype)

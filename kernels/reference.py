"""The fused ops in plain PyTorch, slow and obvious: what the kernels are checked against.

Each function takes the arguments of the fused op of the same name. They run in
the dtype they are given, float64 included.

Letters: S sequences, R residues, R rows that attend, N positions of a row,
H heads, D head width, C channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["biased_attention", "layer_norm"]


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


def _at_least_float32(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype is torch.float64 else torch.float32

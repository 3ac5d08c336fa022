"""`biased_attention` in plain PyTorch: what the kernels are checked against.

Letters: R rows that attend, N positions of a row, H heads, D head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["biased_attention"]


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
    s = (
        torch.einsum("binhd,bimhd->bihnm", q, k).to(torch.promote_types(q.dtype, torch.float32))
        * scale
    )
    if bias is not None:
        s = s + bias[:, None].to(s.dtype)
    if mask is not None:
        valid = (mask > 0.5)[:, :, None, None, :]
        none = ~valid.any(-1, keepdim=True)
        s = torch.where(none, s - s.detach(), s + torch.where(valid, 0.0, -1e9).to(s.dtype))
    p = torch.softmax(s, -1).to(q.dtype)
    return torch.einsum("bihnm,bimhd->binhd", p, v)

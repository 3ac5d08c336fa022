"""`template_attention` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["template_attention"]


def template_attention(
    q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | None = None
) -> Tensor:
    """Every pair attends, head by head, to the T templates at its place."""
    q, k, v = (torch.unflatten(t, -1, (heads, -1)) for t in (q, k, v))
    logits = torch.sum(q[..., None, :, :, :, :] * k, -1) * q.shape[-1] ** -0.5
    if bias is not None:  # float16 has no -1e5
        logits = logits.to(torch.promote_types(q.dtype, torch.float32))
        logits = logits + bias[..., None, None, None].to(logits.dtype)
    weights = torch.softmax(logits, -4).to(q.dtype)
    return torch.sum(weights[..., None] * v, -5).flatten(-2)

"""`masked_softmax` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["masked_softmax"]


def masked_softmax(x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax over keys of x + bias, masked keys at -1e9."""
    s = x.to(torch.promote_types(x.dtype, torch.float32))
    if bias is not None:
        s = s + bias[:, None].to(s.dtype)
    if mask is not None:
        valid = (mask > 0.5)[:, :, None, None, :]
        none = ~valid.any(-1, keepdim=True)
        s = torch.where(none, s - s.detach(), s + torch.where(valid, 0.0, -1e9).to(s.dtype))
    return torch.softmax(s, -1).to(x.dtype)

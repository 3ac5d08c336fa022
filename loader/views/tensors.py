"""Tensors that several projects' features are made of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def longer(value: Tensor, size: int) -> Tensor:
    """With zeros behind, up to `size` rows."""
    return pad(value, (0, 0) * (value.dim() - 1) + (0, size - len(value)))


def symmetric(pairs: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """`[size, size]`: 1 for these pairs of places in both orders."""
    out = torch.zeros(size, size, dtype=dtype, device=pairs.device)
    one, two = pairs.long().T
    ends = torch.cat([one, two]), torch.cat([two, one])
    return out.index_put_(ends, torch.ones_like(ends[0], dtype=dtype))

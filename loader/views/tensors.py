"""Tensors that several projects' features are made of."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad


def longer(value: Tensor, size: int) -> Tensor:
    """With zeros behind, up to `size` rows."""
    return pad(value, (0, 0) * (value.dim() - 1) + (0, size - len(value)))


def stacked_longer(
    values: Mapping[str, Tensor], size: int, dtype: torch.dtype
) -> dict[str, Tensor]:
    """`[size]` of each of these of one length, zeros behind; few kernels for all of them."""
    first = next(iter(values.values()))
    whole = torch.zeros(len(values), size, dtype=dtype, device=first.device)
    whole[:, : len(first)] = torch.stack([value.to(dtype) for value in values.values()])
    return dict(zip(values, whole.unbind(0), strict=True))


def symmetric(pairs: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """`[size, size]`: 1 for these pairs of places in both orders."""
    out = torch.zeros(size, size, dtype=dtype, device=pairs.device)
    one, two = pairs.long().T
    ends = torch.cat([one, two]), torch.cat([two, one])
    return out.index_put_(ends, torch.ones_like(ends[0], dtype=dtype))

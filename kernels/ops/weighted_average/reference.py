"""`weighted_average` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm

if TYPE_CHECKING:
    from evofeed.kernels.ops.weighted_average.op import AverageWeights

__all__ = ["weighted_average"]


def weighted_average(
    m: Tensor, shares: Tensor, weights: AverageWeights, *, eps: float = 1e-5
) -> Tensor:
    """Each row's values averaged over its positions, gated and projected."""
    mn = layer_norm(m, weights.norm_weight, weights.norm_bias, eps)
    v = F.linear(mn, weights.v)
    v = v.view(*v.shape[:-1], shares.shape[1], -1)
    o = torch.einsum("bhij,bsjhd->bsihd", shares.to(v.dtype), v).flatten(-2)
    return F.linear(torch.sigmoid(F.linear(mn, weights.g)) * o, weights.o)

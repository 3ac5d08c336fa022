"""`weighted_average` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AverageWeights", "weighted_average"]


@dataclass(frozen=True, slots=True)
class AverageWeights(Parameters):
    """Parameters of one average: norm, values, gate, output; no biases."""

    norm_weight: Tensor
    norm_bias: Tensor
    v: Tensor
    g: Tensor
    o: Tensor


def weighted_average(
    m: Tensor, shares: Tensor, weights: AverageWeights, *, eps: float = 1e-5
) -> Tensor:
    """Each row's values averaged over its positions, gated and projected."""
    mn = layer_norm(m, weights.norm_weight, weights.norm_bias, eps)
    v = F.linear(mn, weights.v)
    v = v.view(*v.shape[:-1], shares.shape[1], -1)
    o = torch.einsum("bhij,bsjhd->bsihd", shares.to(v.dtype), v).flatten(-2)
    return F.linear(torch.sigmoid(F.linear(mn, weights.g)) * o, weights.o)

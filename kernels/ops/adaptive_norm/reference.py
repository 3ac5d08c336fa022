"""`adaptive_norm` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AdaptiveWeights", "adaptive_norm"]


@dataclass(frozen=True, slots=True)
class AdaptiveWeights(Parameters):
    """Parameters: the scale of the norm of s, its two layers and the first one's bias."""

    norm_weight: Tensor
    gate: Tensor
    gate_bias: Tensor
    shift: Tensor


def adaptive_norm(a: Tensor, s: Tensor, weights: AdaptiveWeights, *, eps: float = 1e-5) -> Tensor:
    """Norm of a, times the sigmoid of one layer of the norm of s, plus another layer of it."""
    w = weights
    sn = F.layer_norm(s, s.shape[-1:], w.norm_weight, None, eps)
    scale = torch.sigmoid(F.linear(sn, w.gate, w.gate_bias))
    return scale * F.layer_norm(a, a.shape[-1:], None, None, eps) + F.linear(sn, w.shift)

"""`adaptive_norm` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from evofeed.kernels.ops.adaptive_norm.op import AdaptiveWeights

__all__ = ["adaptive_norm"]


def adaptive_norm(a: Tensor, s: Tensor, weights: AdaptiveWeights, *, eps: float = 1e-5) -> Tensor:
    """Norm of a, times the sigmoid of one layer of the norm of s, plus another layer of it."""
    w = weights
    sn = F.layer_norm(s, s.shape[-1:], w.norm_weight, None, eps)
    scale = torch.sigmoid(F.linear(sn, w.gate, w.gate_bias))
    return scale * F.layer_norm(a, a.shape[-1:], None, None, eps) + F.linear(sn, w.shift)

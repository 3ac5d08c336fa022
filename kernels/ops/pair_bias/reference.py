"""`pair_bias` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm

__all__ = ["pair_bias"]


def pair_bias(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> Tensor:
    """Attention bias of the normalised pairs, heads first."""
    if not torch.is_autocast_enabled(z.device.type):
        weight = weight.to(z.dtype)
    return scale * F.linear(layer_norm(z, norm_weight, norm_bias, eps), weight).movedim(-1, 1)

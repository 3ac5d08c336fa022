"""`transition` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm

if TYPE_CHECKING:
    from evofeed.kernels.ops.transition.op import TransitionWeights

__all__ = ["transition"]


def transition(
    x: Tensor,
    weights: TransitionWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Norm, two layers with relu between, mask, residual."""
    w = weights
    hidden = F.linear(layer_norm(x, w.norm_weight, w.norm_bias, eps), w.w1, w.b1).relu()
    update = F.linear(hidden, w.w2, w.b2)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return x + update if residual else update

"""`transition` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["TransitionWeights", "transition"]


@dataclass(frozen=True, slots=True)
class TransitionWeights(Parameters):
    """Parameters of one transition, as OpenFold names them."""

    norm_weight: Tensor
    norm_bias: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


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

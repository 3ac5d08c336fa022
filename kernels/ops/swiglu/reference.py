"""`swiglu_transition` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["SwigluWeights", "swiglu_transition"]


@dataclass(frozen=True, slots=True)
class SwigluWeights(Parameters):
    """Parameters of one SwiGLU transition: silu(gate x) * (value x), then out."""

    norm_weight: Tensor
    norm_bias: Tensor
    gate: Tensor
    value: Tensor
    out: Tensor


def swiglu_transition(
    x: Tensor,
    weights: SwigluWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Norm, silu of one layer times another, a third layer, mask, residual."""
    w = weights
    xn = layer_norm(x, w.norm_weight, w.norm_bias, eps)
    update = F.linear(F.silu(F.linear(xn, w.gate)) * F.linear(xn, w.value), w.out)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return x + update if residual else update

"""`conditioned_transition` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights, adaptive_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["ConditionedWeights", "conditioned_transition"]


@dataclass(frozen=True, slots=True)
class ConditionedWeights(Parameters):
    """Parameters: out(silu(silu x) * (value x) * (factor x)), gated by last(s); x is adapted."""

    norm_weight: Tensor
    gate: Tensor
    gate_bias: Tensor
    shift: Tensor
    silu: Tensor
    value: Tensor
    out: Tensor
    last: Tensor
    last_bias: Tensor
    factor: Tensor | None = None

    def adaptive(self) -> AdaptiveWeights:
        """Those of the adaptive norm."""
        return AdaptiveWeights(self.norm_weight, self.gate, self.gate_bias, self.shift)


def conditioned_transition(
    a: Tensor,
    s: Tensor,
    weights: ConditionedWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Adaptive norm, silu of one layer times another (or two), a last layer, gate, mask."""
    w = weights
    x = adaptive_norm(a, s, w.adaptive(), eps=eps)
    hidden = F.silu(F.linear(x, w.silu)) * F.linear(x, w.value)
    hidden = hidden if w.factor is None else hidden * F.linear(x, w.factor)
    update = torch.sigmoid(F.linear(s, w.last, w.last_bias)) * F.linear(hidden, w.out)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return a + update if residual else update

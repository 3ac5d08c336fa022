"""`conditioned_transition` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.reference import adaptive_norm

if TYPE_CHECKING:
    from evofeed.kernels.ops.conditioned_transition.op import ConditionedWeights

__all__ = ["conditioned_transition"]


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

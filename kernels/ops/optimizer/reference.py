"""Adam, clipping and the moving average in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from evofeed.kernels.ops.optimizer.op import FusedAdamEMA

__all__ = ["adam_ema_step"]


def adam_ema_step(optimizer: FusedAdamEMA) -> Tensor:
    """One step of a `FusedAdamEMA` in plain PyTorch; returns the norm before clipping."""
    o = optimizer
    norm = torch.linalg.vector_norm(o.grad, dtype=torch.float32)
    finite = torch.isfinite(norm)
    clip = (o.max_norm / (norm + 1e-6)).clamp(max=1.0)
    grad = torch.where(finite, o.grad.float() * clip, 0.0)
    gate = finite.to(torch.float32)
    o.updates.add_(finite)
    first = (1 - o.beta1**o.updates).clamp(min=1e-12).float()
    second = (1 - o.beta2**o.updates).clamp(min=1e-12).float()
    o.exp_avg.lerp_(grad, (1 - o.beta1) * gate)
    o.exp_avg_sq.lerp_(grad * grad, (1 - o.beta2) * gate)
    size = o.rate * gate / first
    o.param.sub_(size * o.exp_avg / (o.exp_avg_sq.sqrt() / second.sqrt() + o.eps))
    if o.ema is not None:
        o.ema.lerp_(o.param, (1 - o.ema_decay) * gate)
    if o.low is not None:
        o.low.copy_(o.param)
    result: Tensor = norm
    return result

"""Adam, clipping and the moving average in plain PyTorch, the reference of the kernels.

The functions take any tensors: single ones in a test, or an optimizer's flat buffers.
Nothing waits for the device: a gradient that is not finite makes a step an exact no-op
on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["adam_ema_step", "adam_update", "ema_update", "global_norm"]

_PIECE = 1 << 20


def global_norm(grads: Sequence[Tensor]) -> Tensor:
    """Euclidean norm over all tensors together, a float32 scalar on their device.

    Summed in float64, a million elements at a time: torch's sum of 93 million squares in
    float32 on a CPU makes a norm that is 0.2 % short.
    """
    pieces = [piece for grad in grads for piece in torch.split(grad.flatten(), _PIECE)]
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in pieces]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm.float()


def adam_ema_step(optimizer: Any) -> Tensor:
    """One step of a `FusedAdamEMA`; returns the norm before clipping."""
    o = optimizer
    norm = global_norm([o.grad])
    finite = torch.isfinite(norm)
    clip = (o.max_norm / (norm + 1e-6)).clamp(max=1.0)
    grad = torch.where(finite, o.grad.float() * clip, 0.0)
    gate = finite.to(torch.float32)
    o.updates.add_(finite)
    adam_update(
        o.param, grad, o.exp_avg, o.exp_avg_sq, updates=o.updates, rate=o.rate, beta1=o.beta1,
        beta2=o.beta2, eps=o.eps, finite=gate,
    )  # fmt: skip
    if o.ema is not None:
        ema_update(o.ema, o.param, decay=o.ema_decay, finite=gate)
    if o.low is not None:
        o.low.copy_(o.param)
    return norm


def adam_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    updates: Tensor,
    rate: Tensor | float,
    beta1: float,
    beta2: float,
    eps: float,
    finite: Tensor,
) -> None:
    """One Adam step in place, without weight decay; nothing at all where `finite` is 0.

    Args:
        param: weights, changed.
        grad: their gradient, already clipped; must be finite.
        exp_avg: first moment, changed.
        exp_avg_sq: second moment, changed.
        updates: number of updates made so far with this one, float64 scalar on the device.
        rate: learning rate of this step.
        beta1, beta2, eps: Adam's.
        finite: 1.0 to update, 0.0 to leave everything as it is; scalar on the device.
    """
    exp_avg.lerp_(grad, ((1 - beta1) * finite).to(exp_avg.dtype))
    exp_avg_sq.lerp_(grad * grad, ((1 - beta2) * finite).to(exp_avg_sq.dtype))
    correction1 = 1 - beta1**updates
    correction2 = (1 - beta2**updates).sqrt()
    # max: before the first finite step `updates` is 0 and both corrections vanish.
    size = (rate * finite / correction1.clamp(min=1e-12)).to(param.dtype)
    denominator = exp_avg_sq.sqrt().div_(correction2.clamp(min=1e-12).to(param.dtype))
    param.sub_(exp_avg.div(denominator.add_(eps)).mul_(size))


def ema_update(ema: Tensor, param: Tensor, *, decay: float, finite: Tensor) -> None:
    """Moves the average towards the weights: `ema -= (1 - decay) * (ema - param)`, in place.

    A no-op where `finite` is 0.
    """
    ema.lerp_(param, ((1 - decay) * finite).to(ema.dtype))

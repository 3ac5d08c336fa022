"""The fused optimizers in plain PyTorch: what their kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from evofeed.kernels.drop_ins.layerwise import FusedLAMB, FusedLARS
    from evofeed.kernels.ops.optimizer.op import FlatOptimizer, FusedAdamEMA

__all__ = ["adam_ema_step", "lamb_step", "lars_step"]


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


def lamb_step(optimizer: FusedLAMB) -> Tensor:
    """One step of a `FusedLAMB`, tensor by tensor; returns the norm before clipping."""
    o = optimizer
    norm, grad, finite = _clipped(o)
    if not finite:
        return norm
    first, second = 1 - o.beta1**o.updates, 1 - o.beta2**o.updates
    for start, size, adapted in o.spans:
        part = slice(start, start + size)
        weights = o.param[part]
        o.exp_avg[part].lerp_(grad[part], 1 - o.beta1)
        o.exp_avg_sq[part].lerp_(grad[part] ** 2, 1 - o.beta2)
        moment, square = o.exp_avg[part] / first.float(), o.exp_avg_sq[part] / second.float()
        move = moment / (square.sqrt() + o.eps) + (o.weight_decay * weights if adapted else 0)
        ratio, length = weights.norm(), move.norm()
        scale = ratio / length if adapted and ratio > 0 and length > 0 else 1.0
        weights.sub_(o.rate * scale * move)
    _follow(o)
    return norm


def lars_step(optimizer: FusedLARS) -> Tensor:
    """One step of a `FusedLARS`, tensor by tensor; returns the norm before clipping."""
    o = optimizer
    norm, grad, finite = _clipped(o)
    if not finite:
        return norm
    for start, size, adapted in o.spans:
        part = slice(start, start + size)
        weights, slope = o.param[part], grad[part]
        length, steepness = weights.norm(), slope.norm()
        scale, move = 1.0, slope
        if adapted:
            move = slope + o.weight_decay * weights
            if length > 0 and steepness > 0:
                scale = o.trust * length / (steepness + o.weight_decay * length)
        o.momentum_buffer[part].mul_(o.momentum).add_(o.rate * scale * move)
        weights.sub_(o.momentum_buffer[part])
    _follow(o)
    return norm


def _clipped(o: FlatOptimizer) -> tuple[Tensor, Tensor, bool]:
    """Norm, clipped gradient, and whether the norm is finite (then the update is counted)."""
    norm: Tensor = torch.linalg.vector_norm(o.grad, dtype=torch.float32)
    finite = bool(torch.isfinite(norm))
    o.updates.add_(finite)
    return norm, o.grad.float() * (o.max_norm / (norm + 1e-6)).clamp(max=1.0), finite


def _follow(o: FusedLAMB | FusedLARS) -> None:
    """Moving average and 16-bit copy of what the spans cover."""
    for start, size, _ in o.spans:
        part = slice(start, start + size)
        if o.ema is not None:
            o.ema[part].lerp_(o.param[part], 1 - o.ema_decay)
        if o.low is not None:
            o.low[part].copy_(o.param[part])

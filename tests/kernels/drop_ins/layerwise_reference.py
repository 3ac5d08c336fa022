"""LAMB and LARS in plain PyTorch: what their kernels are checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from evofeed.kernels.drop_ins.layerwise import FusedLAMB, FusedLARS
    from evofeed.kernels.ops.optimizer.op import FlatBuffers


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


def _clipped(o: FlatBuffers) -> tuple[Tensor, Tensor, bool]:
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

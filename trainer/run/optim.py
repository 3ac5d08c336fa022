"""Learning rate, clipping, Adam and the moving average of the weights, as pure functions.

Every function takes plain tensors, so the same lines serve one tensor in a test
and the flat buffers of `evofeed.trainer.run.flat` in training. Nothing here waits for
the device: a non-finite gradient turns the update into an exact no-op on the
device itself.

Source: AF2 SI 1.11.3; OpenFold's schedule and constants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from evofeed.trainer.config import OptimConfig

_NORM_EPS = 1e-6  # torch's clip_grad_norm_: keeps the coefficient finite at norm 0


def learning_rate(step: int, config: OptimConfig) -> float:
    """Learning rate of the update number `step`, counted from 0."""
    if step <= config.warmup_steps:
        return config.learning_rate * (step / config.warmup_steps if config.warmup_steps else 1.0)
    if step <= config.decay_after:
        return config.learning_rate
    # +1: OpenFold decays already at the first step past `decay_after`.
    decays = 1 + (step - config.decay_after) // config.decay_every
    return config.learning_rate * math.pow(config.decay_factor, decays)


def global_norm(grads: Sequence[Tensor]) -> Tensor:
    """Euclidean norm over all tensors together, a float32 scalar on their device.

    Each tensor's own norm is summed in float32 whatever its dtype.
    """
    norms = [torch.linalg.vector_norm(grad, dtype=torch.float32) for grad in grads]
    total: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return total


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """What to multiply gradients of this norm by: at most 1, 0-dim, on the same device."""
    coefficient: Tensor = max_norm / (norm + _NORM_EPS)
    return coefficient.clamp(max=1.0)


def adam_update(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    updates: Tensor,
    rate: float,
    config: OptimConfig,
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
        config: betas and epsilon.
        finite: 1.0 to update, 0.0 to leave everything as it is; scalar on the device.
    """
    exp_avg.lerp_(grad, ((1 - config.beta1) * finite).to(exp_avg.dtype))
    exp_avg_sq.lerp_(grad * grad, ((1 - config.beta2) * finite).to(exp_avg_sq.dtype))
    correction1 = 1 - config.beta1**updates
    correction2 = (1 - config.beta2**updates).sqrt()
    # max: before the first finite step `updates` is 0 and both corrections vanish.
    size = (rate * finite / correction1.clamp(min=1e-12)).to(param.dtype)
    denominator = exp_avg_sq.sqrt().div_(correction2.clamp(min=1e-12).to(param.dtype))
    param.sub_(exp_avg.div(denominator.add_(config.eps)).mul_(size))


def ema_update(ema: Tensor, param: Tensor, *, decay: float, finite: Tensor) -> None:
    """Move the average towards the weights: `ema -= (1 - decay) * (ema - param)`, in place.

    Nothing happens where `finite` is 0.
    """
    ema.lerp_(param, ((1 - decay) * finite).to(ema.dtype))

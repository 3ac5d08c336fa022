"""Learning rate, norm of the gradients and clipping, as pure functions.

Nothing here waits for the device. The update itself is that of `evofeed.kernels.FusedAdamEMA`.

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

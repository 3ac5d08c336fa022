"""Learning rate and clipping, as pure functions.

Nothing here waits for the device. The update itself is that of `evofeed.kernels.FusedAdamEMA`.

Source: AF2 SI 1.11.3; OpenFold's schedule and constants.
"""

from __future__ import annotations

import math

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


def clip_coefficient(norm: Tensor, max_norm: float) -> Tensor:
    """What to multiply gradients of this norm by: at most 1, 0-dim, on the same device."""
    coefficient: Tensor = max_norm / (norm + _NORM_EPS)
    return coefficient.clamp(max=1.0)

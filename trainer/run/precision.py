"""Half precision: the autocast dtype of a run, and the dynamic loss scale of float16.

float16 has three more bits of mantissa than bfloat16, but its range ends at 65,504 and 6e-8. So the
loss is multiplied by a scale before the backward pass and the gradient divided by it after; a step
whose gradient is not finite changes nothing and halves the scale. Forward values that could leave
float16's range are computed in float32: `evofeed.trainer.model.primitives.FLOAT32_IN_FLOAT16`.

Source: Micikevicius et al. 2018; constants of torch.amp.GradScaler, which needs torch's optimizers.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INITIAL, _MIN, _MAX = 2.0**16, 1.0, 2.0**24


def autocast(precision: str, device_type: str) -> torch.autocast:
    """The autocast context of a run's forward pass."""
    half = _HALF.get(precision)
    return torch.autocast(device_type, half or torch.bfloat16, enabled=half is not None)


class LossScale:
    """The factor of the loss, a power of two on the device; the host does not wait for it.

    It is doubled after `patience` finite steps.
    """

    def __init__(self, device: torch.device, patience: int = 2_000) -> None:
        self._patience = patience
        self.state = torch.tensor([_INITIAL, 0.0], device=device)
        """The factor and the finite steps since it changed, float32 `[2]`."""

    @property
    def factor(self) -> Tensor:
        """The factor of the loss, a scalar on the device."""
        return self.state[0]

    @property
    def is_least(self) -> Tensor:
        """True if it cannot get smaller: an infinite gradient is then not due to the scale."""
        return self.factor <= _MIN

    def update(self, norm: Tensor) -> None:
        """Updates the factor after a step with this gradient norm: halves it if not finite."""
        factor, streak = self.state.unbind()  # finite steps since the factor changed
        finite = torch.isfinite(norm)
        streak = torch.where(finite, streak + 1, 0.0)
        grows = streak >= self._patience
        factor = torch.where(finite, torch.where(grows, factor * 2, factor), factor / 2)
        streak = torch.where(grows, 0.0, streak)
        self.state.copy_(torch.stack([factor.clamp(_MIN, _MAX), streak]))

"""Half precision: which type a run computes in, and the scale that keeps float16's gradients alive.

float16 has bfloat16's size and three more digits, but ends at 65,504 and below 6e-8. So the loss is
multiplied by a scale before the backward pass and the gradient divided by it after; where something
became infinite the step changes nothing and the scale is halved. What forward values would leave
float16's range is computed in float32: `evofeed.trainer.model.primitives.FLOAT32_IN_FLOAT16`.

Source: Micikevicius et al. 2018; constants of torch.amp.GradScaler, which needs torch's optimizers.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_HALF: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_INITIAL, _LEAST, _MOST = 2.0**16, 1.0, 2.0**24


def autocast(precision: str, device_type: str) -> torch.autocast:
    """The context that a run's forward pass is in."""
    half = _HALF.get(precision)
    return torch.autocast(device_type, half or torch.bfloat16, enabled=half is not None)


class LossScale:
    """The factor of the loss, a power of two that lives on the device; nothing waits for it.

    After so many finite steps as it has `patience` it is doubled.
    """

    def __init__(self, device: torch.device, patience: int = 2_000) -> None:
        self._patience = patience
        self.state = torch.tensor([_INITIAL, 0.0], device=device)
        """The factor and the finite steps since it changed, float32 `[2]`."""

    @property
    def factor(self) -> Tensor:
        """What the loss is multiplied by, a scalar on the device."""
        return self.state[0]

    @property
    def is_least(self) -> Tensor:
        """Whether it cannot get smaller: what is infinite now is not the scale's doing."""
        return self.factor <= _LEAST

    def update(self, norm: Tensor) -> None:
        """After a step with a gradient of this norm: half the factor if it was not finite."""
        factor, clean = self.state.unbind()
        finite = torch.isfinite(norm)
        clean = torch.where(finite, clean + 1, 0.0)
        grows = clean >= self._patience
        factor = torch.where(finite, torch.where(grows, factor * 2, factor), factor / 2)
        self.state.copy_(torch.stack([factor.clamp(_LEAST, _MOST), torch.where(grows, 0.0, clean)]))

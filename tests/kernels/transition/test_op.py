"""The transition against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, linear, norm, to
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.transition.op import TransitionWeights, transition, transition_fits

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("masked", "C"), [(True, 32), (False, 32), (True, 256)])
def test_transition(masked: bool, C: int, device: str, three_way: Check) -> None:
    x = torch.randn(2, 5, max(1, 224 // C), C, device=device)
    weights = to(norm(C) + linear(4 * C, C) + linear(C, 4 * C), device, torch.float32)
    mask = (torch.rand(x.shape[:3], device=device) > 0.3).float() if masked else None
    assert transition_fits(x, TransitionWeights(*weights))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, *weights: op(
            x, TransitionWeights(*weights), mask=mask, residual=not masked
        )

    three_way(call(transition), call(reference.transition), [x, *weights], range(7))


def test_transition_in_half_precision(half: torch.dtype, device: str, three_way: Check) -> None:
    x = torch.randn(70, 64, device=device).to(half)
    weights = to(norm(64) + linear(128, 64) + linear(64, 128), device, half)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, *weights: op(x, TransitionWeights(*weights), residual=True)

    three_way(call(transition), call(reference.transition), [x, *weights], range(7))

"""The attention bias of the pairs against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, check_passed_on, norm, to
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.pair_bias.op import pair_bias, pair_bias_with_input

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precise", [True, False])
def test_pair_bias(precise: bool, half: torch.dtype, device: str, three_way: Check) -> None:
    dtype = torch.float32 if precise else half
    inputs = to([torch.randn(2, 9, 9, 32), *norm(32), torch.randn(4, 32)], device, dtype)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda z, *weights: op(z, *weights, scale=2.0)

    three_way(call(pair_bias), call(reference.pair_bias), inputs, range(4))


@pytest.mark.parametrize("used", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_what_is_passed_on_brings_its_gradient_back(used: tuple[float, float], device: str) -> None:
    z = torch.randn(1, 5, 5, 32, device=device)
    bias = to([*norm(32), torch.randn(4, 32)], device, z.dtype)
    check_passed_on(
        z, lambda z: pair_bias(z, *bias), lambda z: pair_bias_with_input(z, *bias), used
    )

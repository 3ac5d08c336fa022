"""The outer product mean against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, check_passed_on, linear, norm, to
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.outer_product_mean.op import (
    OuterWeights,
    outer_product_mean,
    outer_product_mean_fits,
    outer_product_mean_with_input,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("precise", [True, False])
def test_outer_product_mean(
    precise: bool, half: torch.dtype, device: str, three_way: Check
) -> None:
    dtype = torch.float32 if precise else half
    m, z = torch.randn(1, 5, 9, 32), torch.randn(1, 9, 9, 32)
    weights = norm(32) + linear(16, 32) + linear(16, 32) + linear(32, 256)
    mask = (torch.rand(1, 5, 9, device=device) > 0.2).float()
    inputs = to([m, z, *weights], device, dtype)
    assert outer_product_mean_fits(inputs[0], OuterWeights(*inputs[2:]))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda m, z, *weights: op(m, OuterWeights(*weights), mask, z=z)

    three_way(call(outer_product_mean), call(reference.outer_product_mean), inputs, range(10))


@pytest.mark.parametrize("used", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_what_is_passed_on_brings_its_gradient_back(used: tuple[float, float], device: str) -> None:
    m = torch.randn(1, 3, 5, 32, device=device)
    w = OuterWeights(
        *to(norm(32) + linear(16, 32) + linear(16, 32) + linear(32, 256), device, m.dtype)
    )
    mask = (torch.rand(1, 3, 5, device=device) > 0.2).float()
    check_passed_on(
        m, lambda m: outer_product_mean(m, w, mask),
        lambda m: outer_product_mean_with_input(m, w, mask), used,
    )  # fmt: skip

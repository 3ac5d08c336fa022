"""Triangle multiplication against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, to, triangle_weights
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.triangle_multiplication.op import (
    TriangleWeights,
    triangle_multiplication,
    triangle_multiplication_fits,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("outgoing", [True, False])
def test_triangle_multiplication(outgoing: bool, device: str, three_way: Check) -> None:
    z = torch.randn(1, 11, 11, 32, device=device)
    weights = to(triangle_weights(32, 16), device, torch.float32)
    mask = (torch.rand(1, 11, 11, device=device) > 0.3).float()
    drop = 2 * (torch.rand(1, 11, 32, device=device) > 0.5).float()
    assert triangle_multiplication_fits(z, TriangleWeights(*weights))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda z, *weights: op(
            z, TriangleWeights(*weights), outgoing=outgoing, mask=mask.to(z.dtype), residual=True,
            drop_mask=drop.to(z.dtype),
        )  # fmt: skip

    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), [z, *weights],
        range(17),
    )  # fmt: skip


def test_triangle_multiplication_in_half_precision_and_batches(
    half: torch.dtype, device: str, three_way: Check
) -> None:
    z = torch.randn(2, 9, 9, 32, device=device).to(half)
    weights = to(triangle_weights(32, 32), device, half)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda z, *weights: op(z, TriangleWeights(*weights), outgoing=True)

    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), [z, *weights],
        range(17),
    )  # fmt: skip


def test_triangle_multiplication_of_256_channels_takes_output_channels_in_parts(
    half: torch.dtype, device: str, three_way: Check
) -> None:
    z = torch.randn(1, 5, 5, 256, device=device).to(half)
    weights = to(triangle_weights(256, 256), device, half)
    drop = 2 * (torch.rand(1, 5, 256, device=device) > 0.5).to(half)
    assert triangle_multiplication_fits(z, TriangleWeights(*weights))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda z, *weights: op(
            z, TriangleWeights(*weights), outgoing=False, residual=True, drop_mask=drop.to(z.dtype)
        )

    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), [z, *weights],
        range(17),
    )  # fmt: skip

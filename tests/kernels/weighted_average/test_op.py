"""The pair-weighted average against its reference, in both types, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import Check, norm, to
from torch import Tensor

from evofeed.errors import UnsupportedShape
from evofeed.kernels import reference
from evofeed.kernels.ops.weighted_average.op import (
    AverageWeights,
    weighted_average,
    weighted_average_fits,
)

pytestmark = pytest.mark.gpu


def _inputs(B: int, S: int, N: int, C: int, H: int, D: int) -> list[Tensor]:
    shares = torch.softmax(2 * torch.randn(B, H, N, N), -1)
    weights = [torch.randn(H * D, C) * C**-0.5 for _ in range(2)]
    output = torch.randn(C, H * D) * (H * D) ** -0.5
    return [torch.randn(B, S, N, C), shares, *norm(C), *weights, output]


@pytest.mark.parametrize("dtype", [torch.float32, None], ids=["float32", "16 bits"])
@pytest.mark.parametrize("sizes", [(1, 5, 7, 16, 2, 8), (2, 67, 3, 32, 4, 16)])
def test_it_is_as_exact_as_pytorch(
    sizes: tuple[int, ...], dtype: torch.dtype | None, half: torch.dtype, device: str,
    three_way: Check,
) -> None:  # fmt: skip
    tensors = to(_inputs(*sizes), device, dtype or half)
    assert weighted_average_fits(tensors[0], tensors[1], AverageWeights(*tensors[2:]))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda m, shares, *weights: op(m, shares, AverageWeights(*weights))

    three_way(call(weighted_average), call(reference.weighted_average), tensors, range(7))


def test_a_wrong_shape_is_named(device: str) -> None:
    m, shares, *weights = to(_inputs(1, 2, 3, 16, 2, 8), device, torch.float32)
    with pytest.raises(UnsupportedShape, match=r"shares is \[1, 2, 3, 2\].*\[1, 2, 3, 3\]"):
        weighted_average(m, shares[..., :2], AverageWeights(*weights))

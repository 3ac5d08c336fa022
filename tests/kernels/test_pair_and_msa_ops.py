"""Triangle multiplication, transition and outer product mean against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.feed_forward import TransitionWeights, transition, transition_fits
from evofeed.kernels.outer import (
    OuterWeights,
    outer_product_mean,
    outer_product_mean_fits,
)
from evofeed.kernels.triangle import (
    TriangleWeights,
    triangle_multiplication,
    triangle_multiplication_fits,
)

Check = Callable[..., None]


def _linear(out: int, into: int) -> list[Tensor]:
    return [torch.randn(out, into) * into**-0.5, torch.randn(out)]


def _norm(C: int) -> list[Tensor]:
    return [1 + 0.1 * torch.randn(C), 0.1 * torch.randn(C)]


def _to(tensors: list[Tensor], device: str, dtype: torch.dtype) -> list[Tensor]:
    return [t.to(device, dtype) for t in tensors]


def _triangle_weights(C: int, E: int) -> list[Tensor]:
    projections = [t for _ in range(4) for t in _linear(E, C)]
    return _norm(C) + projections + _norm(E) + _linear(C, E) + _linear(C, C)


@pytest.mark.parametrize("outgoing", [True, False])
def test_triangle_multiplication(outgoing: bool, device: str, three_way: Check) -> None:
    z = torch.randn(1, 11, 11, 32, device=device)
    weights = _to(_triangle_weights(32, 16), device, torch.float32)
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
    weights = _to(_triangle_weights(32, 32), device, half)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda z, *weights: op(z, TriangleWeights(*weights), outgoing=True)

    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), [z, *weights],
        range(17),
    )  # fmt: skip


@pytest.mark.parametrize("masked", [True, False])
def test_transition(masked: bool, device: str, three_way: Check) -> None:
    x = torch.randn(2, 5, 7, 32, device=device)
    weights = _to(_norm(32) + _linear(128, 32) + _linear(32, 128), device, torch.float32)
    mask = (torch.rand(2, 5, 7, device=device) > 0.3).float() if masked else None
    assert transition_fits(x, TransitionWeights(*weights))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, *weights: op(
            x, TransitionWeights(*weights), mask=mask, residual=not masked
        )

    three_way(call(transition), call(reference.transition), [x, *weights], range(7))


def test_transition_in_half_precision(half: torch.dtype, device: str, three_way: Check) -> None:
    x = torch.randn(70, 64, device=device).to(half)
    weights = _to(_norm(64) + _linear(128, 64) + _linear(64, 128), device, half)

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, *weights: op(x, TransitionWeights(*weights), residual=True)

    three_way(call(transition), call(reference.transition), [x, *weights], range(7))


@pytest.mark.parametrize("precise", [True, False])
def test_outer_product_mean(
    precise: bool, half: torch.dtype, device: str, three_way: Check
) -> None:
    dtype = torch.float32 if precise else half
    m, z = torch.randn(1, 5, 9, 32), torch.randn(1, 9, 9, 32)
    weights = _norm(32) + _linear(16, 32) + _linear(16, 32) + _linear(32, 256)
    mask = (torch.rand(1, 5, 9, device=device) > 0.2).float()
    inputs = _to([m, z, *weights], device, dtype)
    assert outer_product_mean_fits(inputs[0], OuterWeights(*inputs[2:]))

    def call(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda m, z, *weights: op(m, OuterWeights(*weights), mask, z=z)

    three_way(call(outer_product_mean), call(reference.outer_product_mean), inputs, range(10))

"""Triangle multiplication, transition and outer product mean against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.outer_product_mean.op import (
    OuterWeights,
    outer_product_mean,
    outer_product_mean_fits,
    outer_product_mean_through,
)
from evofeed.kernels.ops.pair_bias.op import pair_bias, pair_bias_through
from evofeed.kernels.ops.transition.op import TransitionWeights, transition, transition_fits
from evofeed.kernels.ops.triangle_multiplication.op import (
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


@pytest.mark.parametrize(("masked", "C"), [(True, 32), (False, 32), (True, 256)])
def test_transition(masked: bool, C: int, device: str, three_way: Check) -> None:
    x = torch.randn(2, 5, max(1, 224 // C), C, device=device)
    weights = _to(_norm(C) + _linear(4 * C, C) + _linear(C, 4 * C), device, torch.float32)
    mask = (torch.rand(x.shape[:3], device=device) > 0.3).float() if masked else None
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


@pytest.mark.parametrize("used", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_what_is_handed_through_brings_its_gradient_back(
    used: tuple[float, float], device: str
) -> None:
    """The op that hands its input through gives the gradients that autograd's sum would."""
    m, z = torch.randn(1, 3, 5, 32, device=device), torch.randn(1, 5, 5, 32, device=device)
    outer = OuterWeights(
        *_to(_norm(32) + _linear(16, 32) + _linear(16, 32) + _linear(32, 256), device, m.dtype)
    )
    mask = (torch.rand(1, 3, 5, device=device) > 0.2).float()
    bias = _to([*_norm(32), torch.randn(4, 32)], device, z.dtype)

    def gradient(x: Tensor, apart: Callable[..., Tensor], through: object) -> list[Tensor]:
        grads = []
        for fused in (True, False):
            leaf = x.clone().requires_grad_()
            result, same = through(leaf) if fused else (apart(leaf), leaf)  # type: ignore[operator]
            parts = [(t * t).sum() * factor for t, factor in zip((result, same), used, strict=True)]
            (grad,) = torch.autograd.grad(
                sum(p for p, f in zip(parts, used, strict=True) if f), leaf
            )
            grads.append(grad)
        return grads

    for ours, expected in (
        gradient(
            m, lambda m: outer_product_mean(m, outer, mask),
            lambda m: outer_product_mean_through(m, outer, mask),
        ),
        gradient(z, lambda z: pair_bias(z, *bias), lambda z: pair_bias_through(z, *bias)),
    ):  # fmt: skip
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.gated_attention.op import (
    AttentionWeights,
    gated_attention,
    gated_attention_fits,
)
from evofeed.kernels.ops.pair_bias.op import pair_bias

pytestmark = pytest.mark.gpu

Check = Callable[..., None]


def _weights(C: int, width: int, heads: int, pair: bool, like: Tensor) -> list[Tensor]:
    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape) * scale).to(like)

    spread = C**-0.5
    weights = [1 + draw(C, scale=0.1), draw(C, scale=0.1)]
    weights += [draw(width, C, scale=2 * spread) for _ in range(4)]
    weights += [draw(width), draw(C, width, scale=width**-0.5), draw(C)]
    return weights + ([draw(heads, C, scale=spread)] if pair else [])


def _op(function: Callable[..., Tensor], heads: int, **options: Any) -> Callable[..., Tensor]:
    def call(x: Tensor, *weights: Tensor) -> Tensor:
        bias = options.get("bias")
        cast = {"bias": bias.to(x.dtype)} if bias is not None else {}
        drop = options.get("drop_mask")
        if drop is not None:
            cast["drop_mask"] = drop.to(x.dtype)
        return function(x, AttentionWeights(*weights), heads, **{**options, **cast})

    return call


def _check(three_way: Check, x: Tensor, weights: list[Tensor], heads: int, **options: Any) -> None:
    assert gated_attention_fits(x, AttentionWeights(*weights), heads)
    fused, plain = (
        _op(gated_attention, heads, **options),
        _op(reference.gated_attention, heads, **options),
    )
    three_way(fused, plain, [x, *weights], range(1 + len(weights)))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_triangle_attention_around_both_nodes(
    columns: bool, turned: bool, device: str, three_way: Check
) -> None:
    x = torch.randn(1, 13, 13, 32, device=device)
    mask = (torch.rand(1, 13, 13, device=device) > 0.3).float()
    drop = 2 * (torch.rand(1, 13, 32, device=device) > 0.5).float()
    _check(
        three_way, x, _weights(32, 32, 2, True, x), 2, mask=mask, columns=columns,
        turned=turned, residual=True, drop_mask=drop, drop_columnwise=columns,
    )  # fmt: skip


def test_row_attention_with_a_pair_bias_of_its_own(device: str, three_way: Check) -> None:
    x = torch.randn(2, 4, 9, 16, device=device)
    bias = torch.randn(2, 4, 9, 9, device=device)
    mask = (torch.rand(2, 4, 9, device=device) > 0.3).float()
    _check(three_way, x, _weights(16, 32, 4, False, x), 4, bias=bias, mask=mask)


def test_column_attention_without_bias(device: str, three_way: Check) -> None:
    x = torch.randn(1, 11, 5, 32, device=device)
    mask = (torch.rand(1, 11, 5, device=device) > 0.3).float()
    mask[:, :, 2] = 0.0
    _check(three_way, x, _weights(32, 64, 4, False, x), 4, mask=mask, columns=True, residual=True)


def test_half_precision(half: torch.dtype, device: str, three_way: Check) -> None:
    x = torch.randn(1, 10, 10, 32, device=device).to(half)
    _check(three_way, x, _weights(32, 64, 2, True, x), 2, residual=True)


def test_the_gradient_of_an_outside_bias_arrives(device: str) -> None:
    x = torch.randn(1, 3, 8, 16, device=device)
    weights = AttentionWeights(*_weights(16, 16, 2, False, x))
    bias = torch.randn(1, 2, 8, 8, device=device, requires_grad=True)
    ours = torch.autograd.grad(gated_attention(x, weights, 2, bias=bias).sin().sum(), bias)
    plain = torch.autograd.grad(
        reference.gated_attention(x, weights, 2, bias=bias).sin().sum(), bias
    )
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("heads", [4, 8])
def test_the_pair_bias_is_heads_first(heads: int, device: str, three_way: Check) -> None:
    inputs = [
        torch.randn(2, 9, 9, 32),
        1 + 0.1 * torch.randn(32),
        torch.randn(32),
        torch.randn(heads, 32),
    ]
    three_way(pair_bias, reference.pair_bias, [t.to(device) for t in inputs], [0, 1, 2, 3])

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.gated_attention.op import AttentionWeights
from evofeed.kernels.ops.global_attention.op import (
    global_attention_fits,
    global_column_attention,
)

pytestmark = pytest.mark.gpu

Check = Callable[..., None]


def _weights(C: int, heads: int, width: int, like: Tensor) -> list[Tensor]:
    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(shape) * scale).to(like)

    K, spread = heads * width, C**-0.5
    return [
        1 + draw(C, scale=0.1), draw(C, scale=0.1), draw(K, C, scale=3 * spread),
        draw(width, C, scale=3 * spread), draw(width, C, scale=spread),
        draw(K, C, scale=2 * spread), draw(K), draw(C, K, scale=K**-0.5), draw(C),
    ]  # fmt: skip


def _op(function: Callable[..., Tensor], heads: int, mask: Tensor, **options: Any) -> Any:
    def call(x: Tensor, *weights: Tensor) -> Tensor:
        return function(x, AttentionWeights(*weights), heads, mask, **options)

    return call


def _check(
    three_way: Check, x: Tensor, heads: int, width: int, mask: Tensor, **options: Any
) -> None:
    weights = _weights(x.shape[-1], heads, width, x)
    assert global_attention_fits(x, AttentionWeights(*weights), heads)
    three_way(
        _op(global_column_attention, heads, mask, **options),
        _op(reference.global_column_attention, heads, mask, **options),
        [x, *weights], range(1 + len(weights)),
    )  # fmt: skip


@pytest.mark.parametrize(("heads", "width"), [(8, 8), (3, 16), (2, 32)])
@pytest.mark.parametrize("residual", [False, True])
def test_masked_columns_match(
    heads: int, width: int, residual: bool, device: str, three_way: Check
) -> None:
    x = torch.randn(2, 19, 5, 32, device=device)
    mask = (torch.rand(2, 19, 5, device=device) > 0.3).float()
    _check(three_way, x, heads, width, mask, residual=residual)


def test_more_sequences_than_one_tile(device: str, three_way: Check) -> None:
    x = torch.randn(1, 150, 3, 16, device=device)
    mask = (torch.rand(1, 150, 3, device=device) > 0.3).float()
    _check(three_way, x, 4, 8, mask)


def test_a_column_without_a_sequence_averages_all_values(device: str, three_way: Check) -> None:
    x = torch.randn(1, 12, 4, 16, device=device)
    mask = (torch.rand(1, 12, 4, device=device) > 0.3).float()
    mask[:, :, 2] = 0.0
    _check(three_way, x, 2, 8, mask)


def test_half_precision(half: torch.dtype, device: str, three_way: Check) -> None:
    x = torch.randn(1, 40, 6, 64, device=device).to(half)
    mask = (torch.rand(1, 40, 6, device=device) > 0.1).float()
    _check(three_way, x, 8, 8, mask, residual=True)


def test_two_runs_give_equal_bits(half: torch.dtype, device: str) -> None:
    x = torch.randn(1, 60, 7, 32, device=device).to(half).requires_grad_()
    mask = torch.ones(1, 60, 7, device=device)
    weights = _weights(32, 4, 8, x.detach())
    runs = []
    for _ in range(2):
        out = global_column_attention(x, AttentionWeights(*weights), 4, mask)
        runs.append([out, *torch.autograd.grad(out.float().sin().sum(), x)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

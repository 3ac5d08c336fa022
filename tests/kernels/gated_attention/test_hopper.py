"""The gated output for Hopper: against float64, the plain kernels, and bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import (
    Check,
    Op,
    check_equal_runs_and_plain_kernels,
    hopper,
    linear,
    norm,
    to,
)
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.gated_attention.hopper import launch
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights

BF16 = torch.bfloat16


def _attention(
    shape: tuple[int, int, int, int], heads: int, width: int, columns: bool, drops: bool
) -> tuple[Callable[[Op], Op], list[Tensor]]:
    B, R, N, C = shape
    K = heads * width
    weights = [*norm(C, 0.3), *(linear(K, C, 0.3)[0] for _ in range(4)), 0.5 * torch.randn(K)]
    inputs = to([torch.randn(shape) * 2 + 0.5, *weights, *linear(C, K, 0.3)], "cuda", BF16)
    mask = (torch.rand(B, R, N, device="cuda") > 0.2).to(BF16)
    drop = (torch.rand(B, R if columns else N, C, device="cuda") > 0.25).to(BF16) / 0.75
    assert launch.fits(inputs[0], K, BF16)

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, AttentionWeights(*weights), heads, mask=mask.to(x.dtype), columns=columns,
            residual=True, drop_mask=drop.to(x.dtype) if drops else None,
            drop_columnwise=columns and drops,
        )  # fmt: skip

    return call, inputs


ATTENTIONS = [
    ((1, 40, 72, 128), 4, 32, True, True), ((1, 40, 72, 128), 4, 32, False, True),
    ((2, 20, 50, 256), 8, 32, False, True), ((1, 33, 50, 256), 8, 32, True, False),
    ((1, 30, 47, 64), 8, 8, False, True), ((2, 28, 28, 64), 4, 16, True, True),
]  # fmt: skip


@hopper
@pytest.mark.parametrize("case", ATTENTIONS)
def test_gated_attention(
    case: tuple[tuple[int, int, int, int], int, int, bool, bool], three_way: Check
) -> None:
    call, inputs = _attention(*case)
    three_way(call(gated_attention), call(reference.gated_attention), inputs, range(10))


@hopper
def test_runs_are_equal_and_the_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    call, inputs = _attention((1, 64, 128, 256), 8, 32, False, True)
    check_equal_runs_and_plain_kernels(call(gated_attention), inputs, launch, monkeypatch)

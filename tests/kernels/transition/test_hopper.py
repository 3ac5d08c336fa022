"""The transition's kernel for Hopper: against float64, the plain kernels, and bit by bit."""

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
from evofeed.kernels.ops.transition.hopper import launch
from evofeed.kernels.ops.transition.op import transition
from evofeed.kernels.ops.transition.reference import TransitionWeights

BF16 = torch.bfloat16


def _transition(C: int, rows: int, masked: bool) -> tuple[Callable[[Op], Op], list[Tensor]]:
    x = torch.randn(1, rows, C) * 2 + 0.5
    inputs = to([x, *norm(C, 0.3), *linear(4 * C, C, 0.3), *linear(C, 4 * C, 0.3)], "cuda", BF16)
    mask = (torch.rand(1, rows, device="cuda") > 0.2).to(BF16)
    assert launch.fits(inputs[0][0], inputs[3])

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, TransitionWeights(*weights), mask=mask.to(x.dtype) if masked else None, residual=True
        )

    return call, inputs


@hopper
@pytest.mark.parametrize(
    "case", [(64, 5000, True), (128, 1030, False), (256, 999, True), (256, 17_000, False)]
)
def test_transition(case: tuple[int, int, bool], three_way: Check) -> None:
    call, inputs = _transition(*case)
    three_way(call(transition), call(reference.transition), inputs, range(7))


@hopper
def test_runs_are_equal_and_the_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    call, inputs = _transition(128, 20_000, False)
    check_equal_runs_and_plain_kernels(call(transition), inputs, launch, monkeypatch)

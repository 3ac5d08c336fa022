"""The SwiGLU transition's kernel for Hopper: against float64, the plain kernels, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.kernels.weights import (
    Check,
    Op,
    check_equal_runs_and_plain_kernels,
    hopper,
    norm,
    to,
)
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.swiglu.hopper import launch
from evofeed.kernels.ops.swiglu.op import swiglu_transition
from evofeed.kernels.ops.swiglu.reference import SwigluWeights

BF16 = torch.bfloat16


def _swiglu(C: int, rows: int, masked: bool) -> tuple[Callable[[Op], Op], list[Tensor]]:
    layers = [torch.randn(n, k) / k**0.5 for n, k in ((4 * C, C), (4 * C, C), (C, 4 * C))]
    inputs = to([torch.randn(1, rows, C) * 2 + 0.5, *norm(C, 0.3), *layers], "cuda", BF16)
    mask = (torch.rand(1, rows, device="cuda") > 0.2).to(BF16)
    assert launch.fits(inputs[0][0], inputs[5])

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, SwigluWeights(*weights), mask=mask.to(x.dtype) if masked else None, residual=masked
        )

    return call, inputs


@hopper
@pytest.mark.parametrize("case", [(64, 5000, True), (128, 1030, False), (128, 999, True)])
def test_swiglu(case: tuple[int, int, bool], three_way: Check) -> None:
    call, inputs = _swiglu(*case)
    three_way(call(swiglu_transition), call(reference.swiglu_transition), inputs, range(6))


@hopper
def test_runs_are_equal_and_the_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    call, inputs = _swiglu(128, 20_000, True)
    check_equal_runs_and_plain_kernels(call(swiglu_transition), inputs, launch, monkeypatch)

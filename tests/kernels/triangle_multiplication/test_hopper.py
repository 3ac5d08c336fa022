"""The triangle kernels for Hopper: against float64, the plain kernels, and bit by bit."""

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
from evofeed.kernels.ops.triangle_multiplication.hopper import launch
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.ops.triangle_multiplication.triton import projection_sums_kernel

BF16 = torch.bfloat16


def _triangle(
    B: int, R: int, C: int, outgoing: bool, drops: bool
) -> tuple[Callable[[Op], Op], list[Tensor]]:
    z = torch.randn(B, R, R, C) * 2 + 0.5
    projections = [t for _ in range(4) for t in linear(C, C, 0.3)]
    ends = [*norm(C, 0.3), *linear(C, C, 0.3), *linear(C, C, 0.3)]
    inputs = to([z, *norm(C, 0.3), *projections, *ends], "cuda", BF16)
    mask = (torch.rand(B, R, R, device="cuda") > 0.2).to(BF16)
    drop = (torch.rand(B, R, C, device="cuda") > 0.25).to(BF16) / 0.75
    assert launch.fits(inputs[0], C, BF16)

    def call(op: Op) -> Op:
        return lambda z, *weights: op(
            z, TriangleWeights(*weights), outgoing=outgoing, mask=mask.to(z.dtype), residual=True,
            drop_mask=drop.to(z.dtype) if drops else None,
        )  # fmt: skip

    return call, inputs


TRIANGLES = [
    (1, 36, 128, True, True), (2, 60, 64, False, True), (1, 100, 128, False, True),
    (1, 8, 64, True, False), (1, 196, 128, True, True), (2, 132, 128, False, True),
    (1, 192, 128, False, False),
]  # fmt: skip


@hopper
@pytest.mark.parametrize("case", TRIANGLES)
def test_triangle_multiplication(case: tuple[int, int, int, bool, bool], three_way: Check) -> None:
    call, inputs = _triangle(*case)
    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), inputs, range(17)
    )


@hopper
@pytest.mark.parametrize("R", [128, 256])  # few pairs and many: other kernels
def test_runs_are_equal_and_the_plain_kernels_agree(
    R: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, inputs = _triangle(1, R, 128, True, True)
    check_equal_runs_and_plain_kernels(call(triangle_multiplication), inputs, launch, monkeypatch)


def test_the_sums_of_all_programs_give_the_gradients_of_the_projection(device: str) -> None:
    programs, C, E = 5, 32, 16
    x, dy, w = (
        torch.randn(n, m, device=device) for n, m in ((programs * 7, E), (programs * 7, C), (C, E))
    )
    gamma, beta = (t.to(device) for t in norm(E, 0.3))
    parts = torch.stack([a.t() @ b for a, b in zip(x.split(7), dy.split(7), strict=True)])
    sums = torch.stack([t.sum(0) for t in dy.split(7)])
    partial = torch.cat([sums, 2 * sums], 1)
    dw, others = torch.empty_like(w), torch.empty(2 * (C + E), device=device)
    projection_sums_kernel[(E,)](
        parts, partial, w, gamma, beta, dw, others, programs, C=C, E=E, GROUP=4
    )
    normed, total = x * gamma + beta, dy.sum(0)
    dx = dy @ w
    torch.testing.assert_close(dw, dy.t() @ normed, rtol=1e-4, atol=1e-4)
    expected = torch.cat([(dx * x).sum(0), dx.sum(0), total, 2 * total])
    torch.testing.assert_close(others, expected, rtol=1e-4, atol=1e-4)

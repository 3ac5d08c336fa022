"""Kernels for Hopper of blocks: against float64, against those for any card, and bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.kernels.weights import Check, Op, gradients, hopper, linear, norm, to
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.gated_attention.hopper import launch as gated_launch
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.swiglu.hopper import launch as swiglu_launch
from evofeed.kernels.ops.swiglu.op import swiglu_transition
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.ops.transition.hopper import launch as transition_launch
from evofeed.kernels.ops.transition.op import transition
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as triangle_launch
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.ops.triangle_multiplication.triton import projection_sums_kernel

BF16 = torch.bfloat16
Made = tuple[Callable[[Op], Op], list[Tensor]]


def _mask(*shape: int) -> Tensor:
    return (torch.rand(shape, device="cuda") > 0.2).to(BF16)


def _drop(*shape: int) -> Tensor:
    return (torch.rand(shape, device="cuda") > 0.25).to(BF16) / 0.75


def _attention(
    B: int, R: int, N: int, C: int, heads: int, width: int, columns: bool, drops: bool
) -> Made:
    K = heads * width
    weights = [*norm(C, 0.3), *(linear(K, C, 0.3)[0] for _ in range(4)), 0.5 * torch.randn(K)]
    x = torch.randn(B, R, N, C) * 2 + 0.5
    inputs = to([x, *weights, *linear(C, K, 0.3)], "cuda", BF16)
    mask, drop = _mask(B, R, N), _drop(B, R if columns else N, C)
    assert gated_launch.fits(inputs[0], K, BF16)

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, AttentionWeights(*weights), heads, mask=mask.to(x.dtype), columns=columns,
            residual=True, drop_mask=drop.to(x.dtype) if drops else None,
            drop_columnwise=columns and drops,
        )  # fmt: skip

    return call, inputs


def _swiglu(C: int, rows: int, masked: bool) -> Made:
    layers = [torch.randn(n, k) / k**0.5 for n, k in ((4 * C, C), (4 * C, C), (C, 4 * C))]
    inputs = to([torch.randn(1, rows, C) * 2 + 0.5, *norm(C, 0.3), *layers], "cuda", BF16)
    mask = _mask(1, rows)
    assert swiglu_launch.fits(inputs[0][0], inputs[5])

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, SwigluWeights(*weights), mask=mask.to(x.dtype) if masked else None, residual=masked
        )

    return call, inputs


def _transition(C: int, rows: int, masked: bool) -> Made:
    x = torch.randn(1, rows, C) * 2 + 0.5
    inputs = to([x, *norm(C, 0.3), *linear(4 * C, C, 0.3), *linear(C, 4 * C, 0.3)], "cuda", BF16)
    mask = _mask(1, rows)
    assert transition_launch.fits(inputs[0][0], inputs[3])

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, TransitionWeights(*weights), mask=mask.to(x.dtype) if masked else None, residual=True
        )

    return call, inputs


def _triangle(B: int, R: int, C: int, outgoing: bool, drops: bool) -> Made:
    z = torch.randn(B, R, R, C) * 2 + 0.5
    projections = [t for _ in range(4) for t in linear(C, C, 0.3)]
    ends = [*norm(C, 0.3), *linear(C, C, 0.3), *linear(C, C, 0.3)]
    inputs = to([z, *norm(C, 0.3), *projections, *ends], "cuda", BF16)
    mask, drop = _mask(B, R, R), _drop(B, R, C)
    assert triangle_launch.fits(inputs[0], C, BF16)

    def call(op: Op) -> Op:
        return lambda z, *weights: op(
            z, TriangleWeights(*weights), outgoing=outgoing, mask=mask.to(z.dtype), residual=True,
            drop_mask=drop.to(z.dtype) if drops else None,
        )  # fmt: skip

    return call, inputs


OPERATORS: dict[Callable[..., Made], tuple[Any, Op, Op]] = {
    _attention: (gated_launch, gated_attention, reference.gated_attention),
    _swiglu: (swiglu_launch, swiglu_transition, reference.swiglu_transition),
    _transition: (transition_launch, transition, reference.transition),
    _triangle: (triangle_launch, triangle_multiplication, reference.triangle_multiplication),
}
CASES: list[tuple[Callable[..., Made], tuple[Any, ...]]] = [
    (_attention, (1, 40, 72, 128, 4, 32, True, True)),
    (_attention, (1, 40, 72, 128, 4, 32, False, True)),
    (_attention, (2, 20, 50, 256, 8, 32, False, True)),
    (_attention, (1, 33, 50, 256, 8, 32, True, False)),
    (_attention, (1, 30, 47, 64, 8, 8, False, True)),
    (_attention, (2, 28, 28, 64, 4, 16, True, True)),
    *((_swiglu, sizes) for sizes in ((64, 5000, True), (128, 1030, False), (128, 999, True))),
    (_transition, (64, 5000, True)), (_transition, (128, 1030, False)),
    (_transition, (256, 999, True)), (_transition, (256, 17_000, False)),
    (_triangle, (1, 36, 128, True, True)), (_triangle, (2, 60, 64, False, True)),
    (_triangle, (1, 100, 128, False, True)), (_triangle, (1, 8, 64, True, False)),
    (_triangle, (1, 196, 128, True, True)), (_triangle, (2, 132, 128, False, True)),
    (_triangle, (1, 192, 128, False, False)),
]  # fmt: skip


@hopper
@pytest.mark.parametrize(("make", "sizes"), CASES)
def test_it_is_as_exact_as_pytorch(
    make: Callable[..., Made], sizes: tuple[Any, ...], three_way: Check
) -> None:
    call, inputs = make(*sizes)
    _, op, plain = OPERATORS[make]
    three_way(call(op), call(plain), inputs, range(len(inputs)))


@hopper
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (_attention, (1, 64, 128, 256, 8, 32, False, True)), (_swiglu, (128, 20_000, True)),
        (_transition, (128, 20_000, False)),
        # few pairs and many: other kernels
        (_triangle, (1, 128, 128, True, True)), (_triangle, (1, 256, 128, True, True)),
    ],
)  # fmt: skip
def test_runs_have_equal_bits_and_those_for_any_card_agree(
    make: Callable[..., Made], sizes: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, inputs = make(*sizes)
    launch, op, _ = OPERATORS[make]
    ours = gradients(call(op), inputs)
    for _ in range(3):
        assert all(map(torch.equal, ours, gradients(call(op), inputs)))
    monkeypatch.setattr(launch, "fits", lambda *_: False)
    for a, b in zip(ours, gradients(call(op), inputs), strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - b.double()).norm() < 2e-2 * b.double().norm()


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

"""The blocks' kernels for Hopper: against float64, against the plain kernels, bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.ops.gated_attention.hopper import launch as hopper_gated
from evofeed.kernels.ops.gated_attention.op import AttentionWeights, gated_attention
from evofeed.kernels.ops.transition.hopper import launch as hopper_transition
from evofeed.kernels.ops.transition.op import TransitionWeights, transition
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as hopper_triangle
from evofeed.kernels.ops.triangle_multiplication.op import TriangleWeights, triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.triton import projection_sums_kernel
from evofeed.kernels.runtime.backend import HAS_GLUON

Check = Callable[..., None]
Op = Callable[..., Tensor]
BF16 = torch.bfloat16
ON_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def hopper(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that needs a Hopper card."""
    skip = pytest.mark.skipif(not ON_HOPPER, reason="needs a Hopper card")
    return pytest.mark.gpu(skip(test))  # type: ignore[no-any-return]


def _linear(out: int, into: int) -> list[Tensor]:
    return [torch.randn(out, into) * into**-0.5, 0.3 * torch.randn(out)]


def _norm(C: int) -> list[Tensor]:
    return [1 + 0.3 * torch.randn(C), 0.2 * torch.randn(C)]


def _cuda(tensors: list[Tensor]) -> list[Tensor]:
    return [t.to("cuda", BF16) for t in tensors]


def _triangle(
    B: int, R: int, C: int, outgoing: bool, drops: bool
) -> tuple[Callable[[Op], Op], list[Tensor]]:
    z = torch.randn(B, R, R, C) * 2 + 0.5
    projections = [t for _ in range(4) for t in _linear(C, C)]
    inputs = _cuda([z, *_norm(C), *projections, *_norm(C), *_linear(C, C), *_linear(C, C)])
    mask = (torch.rand(B, R, R, device="cuda") > 0.2).to(BF16)
    drop = (torch.rand(B, R, C, device="cuda") > 0.25).to(BF16) / 0.75
    assert hopper_triangle.fits(inputs[0], C, BF16)

    def call(op: Op) -> Op:
        return lambda z, *weights: op(
            z, TriangleWeights(*weights), outgoing=outgoing, mask=mask.to(z.dtype), residual=True,
            drop_mask=drop.to(z.dtype) if drops else None,
        )  # fmt: skip

    return call, inputs


TRIANGLES = [
    (1, 36, 128, True, True), (2, 60, 64, False, True), (1, 100, 128, False, True),
    (1, 8, 64, True, False),
]  # fmt: skip


@hopper
@pytest.mark.parametrize("case", TRIANGLES)
def test_triangle_multiplication(case: tuple[int, int, int, bool, bool], three_way: Check) -> None:
    call, inputs = _triangle(*case)
    three_way(
        call(triangle_multiplication), call(reference.triangle_multiplication), inputs, range(17)
    )


def _attention(
    shape: tuple[int, int, int, int], heads: int, width: int, columns: bool, drops: bool
) -> tuple[Callable[[Op], Op], list[Tensor]]:
    B, R, N, C = shape
    K = heads * width
    weights = [*_norm(C), *(_linear(K, C)[0] for _ in range(4)), 0.5 * torch.randn(K)]
    inputs = _cuda([torch.randn(shape) * 2 + 0.5, *weights, *_linear(C, K)])
    mask = (torch.rand(B, R, N, device="cuda") > 0.2).to(BF16)
    drop = (torch.rand(B, R if columns else N, C, device="cuda") > 0.25).to(BF16) / 0.75
    assert hopper_gated.fits(inputs[0], K, BF16)

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


def _transition(C: int, rows: int, masked: bool) -> tuple[Callable[[Op], Op], list[Tensor]]:
    x = torch.randn(1, rows, C) * 2 + 0.5
    inputs = _cuda([x, *_norm(C), *_linear(4 * C, C), *_linear(C, 4 * C)])
    mask = (torch.rand(1, rows, device="cuda") > 0.2).to(BF16)
    assert hopper_transition.fits(inputs[0][0], inputs[3])

    def call(op: Op) -> Op:
        return lambda x, *weights: op(
            x, TransitionWeights(*weights), mask=mask.to(x.dtype) if masked else None, residual=True
        )

    return call, inputs


@hopper
@pytest.mark.parametrize("case", [(64, 5000, True), (128, 1030, False), (256, 999, True)])
def test_transition(case: tuple[int, int, bool], three_way: Check) -> None:
    call, inputs = _transition(*case)
    three_way(call(transition), call(reference.transition), inputs, range(7))


def _gradients(op: Op, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = op(*leaves)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn_like(out))]


@hopper
@pytest.mark.parametrize("which", ["triangle", "attention", "transition"])
def test_the_plain_kernels_agree_and_two_runs_are_equal(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, inputs = {
        "triangle": lambda: _triangle(1, 128, 128, True, True),
        "attention": lambda: _attention((1, 64, 128, 256), 8, 32, False, True),
        "transition": lambda: _transition(128, 20_000, False),
    }[which]()
    plain: Op = {
        "triangle": triangle_multiplication, "attention": gated_attention,
        "transition": transition,
    }[which]  # fmt: skip
    op = call(plain)
    ours = _gradients(op, inputs)
    for _ in range(3):
        for a, b in zip(ours, _gradients(op, inputs), strict=True):
            assert torch.equal(a, b)
    for module in (hopper_triangle, hopper_gated, hopper_transition):
        monkeypatch.setattr(module, "fits", lambda *_: False)
    for a, b in zip(ours, _gradients(op, inputs), strict=True):
        assert torch.isfinite(a).all()
        assert (a.double() - b.double()).norm() < 2e-2 * b.double().norm()


def test_the_sums_of_all_programs_give_the_gradients_of_the_projection(device: str) -> None:
    programs, C, E = 5, 32, 16
    x, dy, w = (
        torch.randn(n, m, device=device) for n, m in ((programs * 7, E), (programs * 7, C), (C, E))
    )
    gamma, beta = (t.to(device) for t in _norm(E))
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


@pytest.mark.skipif(not HAS_GLUON, reason="needs Triton 3.6")
def test_the_kernels_compile_for_hopper_without_one(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(__file__).with_name("hopper_block_compile.py")
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    # products, in steps of 16: none was unrolled or split
    assert run.stdout.split() == ["16", "16", "28", "16", "8", "12", "24"]

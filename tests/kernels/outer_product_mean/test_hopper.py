"""The outer product's kernels for Hopper: against float64, the plain kernels, and bit by bit."""

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
from evofeed.kernels.ops.outer_product_mean.hopper import launch
from evofeed.kernels.ops.outer_product_mean.launch import masked
from evofeed.kernels.ops.outer_product_mean.op import OuterWeights, outer_product_mean

BF16 = torch.bfloat16
C, E, N = 64, 32, 128


def _outer(B: int, S: int, R: int, residual: bool) -> tuple[Callable[[Op], Op], list[Tensor]]:
    m, z = torch.randn(B, S, R, C), torch.randn(B, R, R, N)
    weights = norm(C) + linear(E, C) + linear(E, C) + linear(N, E * E)
    inputs = to([m, *([z] if residual else []), *weights], "cuda", BF16)
    mask = (torch.rand(B, S, R, device="cuda") > 0.2).to(BF16)

    def call(op: Op) -> Op:
        def run(m: Tensor, *others: Tensor) -> Tensor:
            z, weights = (others[0], others[1:]) if residual else (None, others)
            return op(m, OuterWeights(*weights), mask.to(m.dtype), z=z)

        return run

    return call, inputs


@hopper
@pytest.mark.parametrize(
    ("case", "forward"),
    [
        ((1, 132, 72, True), True),  # a tile ends beyond the last residue, sequences behind 128
        ((1, 128, 64, True), True),
        ((1, 130, 132, False), False),
        ((1, 40, 30, True), False),  # few sequences
        ((1, 132, 36, True), False),  # fewer residues than a tile has
        ((1, 132, 68, True), False),  # residues that do not fill lines of 16 bytes
        ((2, 132, 72, True), False),
    ],
)
def test_outer_product_mean(
    case: tuple[int, int, int, bool], forward: bool, three_way: Check
) -> None:
    call, inputs = _outer(*case)
    B, S, _, residual = case
    z = inputs[1] if residual else None
    assert launch.forward_fits(z, S, B, E, N, BF16) is forward
    three_way(
        call(outer_product_mean), call(reference.outer_product_mean), inputs, range(len(inputs))
    )


@hopper
def test_runs_are_equal_and_the_plain_kernels_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    call, inputs = _outer(1, 132, 128, True)
    check_equal_runs_and_plain_kernels(call(outer_product_mean), inputs, launch, monkeypatch)


@pytest.mark.gpu
def test_the_first_half_is_written_channels_first_too(device: str) -> None:
    S, L = 11, 13
    both, mask = torch.randn(S * L, 2, 16, device=device), torch.rand(S * L, device=device)
    source, to_ = both.transpose(0, 1), torch.empty(2, S * L, 16, device=device)
    turned = torch.empty(S, 16, L, device=device)
    masked(source, mask, to_, turned)
    assert torch.equal(to_, source * mask[:, None])
    assert torch.equal(turned, to_[0].view(S, L, 16).mT)

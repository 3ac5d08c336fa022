"""Kernels for Hopper of blocks: against float64, against those for any card, and bit by bit."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.weights import Check, gradients, hopper

from evofeed.kernels.ops.gated_attention.hopper import launch as gated_launch
from evofeed.kernels.ops.swiglu.hopper import launch as swiglu_launch
from evofeed.kernels.ops.transition.hopper import launch as transition_launch
from evofeed.kernels.ops.triangle_multiplication.hopper import launch as triangle_launch
from evofeed.kernels.runtime.cases import Case, Draw, declared

LAUNCHES = {
    "gated_attention": gated_launch, "swiglu": swiglu_launch, "transition": transition_launch,
    "triangle_multiplication": triangle_launch,
}  # fmt: skip
CASES = [  # of an operator, as wide as models have it: sequences and residues
    *(("gated_attention", "rows of 256 channels", *sizes) for sizes in ((20, 50), (33, 47))),
    *(("gated_attention", "columns of 64 channels", *sizes) for sizes in ((40, 72), (30, 47))),
    ("gated_attention", "ending node, 128 channels", 28, 28),
    ("gated_attention", "triangle 256", 40, 40), ("swiglu", "64 channels", 50, 100),
    *(("swiglu", "128 channels", *sizes) for sizes in ((2, 515), (27, 37))),
    ("transition", "residual", 50, 100), ("transition", "pairs 256", 2, 515),
    *(("transition", "256 channels", *sizes) for sizes in ((27, 37), (100, 170))),
    *(("triangle_multiplication", "outgoing 256", 1, R) for R in (36, 196)),
    *(("triangle_multiplication", "incoming 256", 1, R) for R in (100, 192)),
    *(("triangle_multiplication", "64 channels", 1, R) for R in (8, 60)),
]  # fmt: skip


def _made(operator: str, case: str, sequences: int, residues: int) -> Case:
    it = declared()[operator]
    makers = {**it.cases, **it.wide, **{name: make for name, (_, _, make) in it.timed.items()}}
    return makers[case](Draw(sequences, residues, "cuda", torch.bfloat16))


@hopper
@pytest.mark.parametrize(("operator", "case", "sequences", "residues"), CASES)
def test_it_is_as_exact_as_pytorch(
    operator: str, case: str, sequences: int, residues: int, three_way: Check
) -> None:
    it, made = declared()[operator], _made(operator, case, sequences, residues)
    inputs = [*made.tensors.values()]
    three_way(made.call(it.op), made.call(it.reference), inputs, range(len(inputs)))


@hopper
@pytest.mark.parametrize(
    ("operator", "case", "sequences", "residues"),
    [
        ("gated_attention", "rows of 256 channels", 64, 128), ("swiglu", "pairs 256", 144, 144),
        ("transition", "pairs 256", 144, 144),
        # few pairs and many: other kernels
        ("triangle_multiplication", "outgoing 256", 1, 128),
        ("triangle_multiplication", "outgoing 256", 1, 256),
    ],
)  # fmt: skip
def test_runs_have_equal_bits_and_those_for_any_card_agree(
    operator: str, case: str, sequences: int, residues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, op = _made(operator, case, sequences, residues), declared()[operator].op
    inputs, asked = [*made.tensors.values()], list[bool]()
    ours = gradients(made.call(op), inputs)
    for _ in range(3):
        assert all(map(torch.equal, ours, gradients(made.call(op), inputs)))

    def never(*given: object) -> bool:
        asked.append(True)
        return False

    monkeypatch.setattr(LAUNCHES[operator], "fits", never)
    for a, b in zip(ours, gradients(made.call(op), inputs), strict=True):
        assert asked and torch.isfinite(a).all()
        assert (a.double() - b.double()).norm() < 2e-2 * b.double().norm()

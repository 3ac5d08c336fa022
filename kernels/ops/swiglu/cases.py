"""What the SwiGLU transition is tried with."""

from __future__ import annotations

from functools import partial

from evofeed.kernels.ops.swiglu import reference
from evofeed.kernels.ops.swiglu.op import swiglu_transition
from evofeed.kernels.ops.swiglu.reference import SwigluWeights
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, n: int, *, masked: bool = False, residual: bool = False) -> Case:
    rows, N = (draw.sequences, draw.residues), n * C
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), gate=(N, C), value=(N, C), out=(C, N))
    mask = draw.mask(*rows) if masked else None
    return Case(
        {"x": draw(*rows, C), **weights},
        lambda op, x, **w: op(x, SwigluWeights(**w), mask=mask, residual=residual),
    )


OPERATOR = Operator(
    swiglu_transition, reference.swiglu_transition,
    {
        "plain": lambda draw: _case(draw, 16, 2),
        "of a mask": lambda draw: _case(draw, 16, 4, masked=True),
        "residual": lambda draw: _case(draw, 24, 2, residual=True),
        "of both": lambda draw: _case(draw, 24, 4, masked=True, residual=True),
        "256 channels": lambda draw: _case(draw, 256, 2, masked=True, residual=True),
    },
    {f"{C} channels": partial(_case, C=C, n=4, masked=True, residual=True) for C in (64, 128)},
    timed={f"pairs {R}": (R, R, lambda draw: _case(draw, 128, 4, masked=True)) for R in (256, 384)},
)  # fmt: skip

"""What the transition is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.transition import reference
from evofeed.kernels.ops.transition.op import transition
from evofeed.kernels.ops.transition.reference import TransitionWeights
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, n: int, *, masked: bool = False, residual: bool = False) -> Case:
    rows, N = (draw.sequences, draw.residues), n * C
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), w1=(N, C), b1=(N,), w2=(C, N), b2=(C,))
    mask = draw.mask(*rows) if masked else None
    return Case(
        {"x": draw(*rows, C), **weights},
        lambda op, x, **w: op(x, TransitionWeights(**w), mask=mask, residual=residual),
    )


OPERATOR = Operator(
    transition, reference.transition,
    {
        "plain": lambda draw: _case(draw, 16, 2),
        "of a mask": lambda draw: _case(draw, 32, 4, masked=True),
        "residual": lambda draw: _case(draw, 64, 2, residual=True),
        "256 channels": lambda draw: _case(draw, 256, 2, masked=True),
    },
    timed={
        "MSA 128x256": (128, 256, lambda draw: _case(draw, 256, 4, masked=True)),
        "pairs 256": (256, 256, lambda draw: _case(draw, 128, 4, masked=True)),
    },
)  # fmt: skip

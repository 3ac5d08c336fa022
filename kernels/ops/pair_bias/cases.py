"""What the attention bias of the pairs is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.pair_bias import reference
from evofeed.kernels.ops.pair_bias.op import pair_bias
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, H: int, scale: float) -> Case:
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), weight=(H, C))
    return Case(
        {"z": draw(2, draw.residues, draw.residues, C), **weights},
        lambda op, **t: op(**t, scale=scale),
    )


OPERATOR = Operator(
    pair_bias, reference.pair_bias,
    {
        "four heads": lambda draw: _case(draw, 32, 4, 2.0),
        "eight heads": lambda draw: _case(draw, 32, 8, 1.0),
    },
    timed={f"{R} residues": (1, R, lambda draw: _case(draw, 128, 8, 1.0)) for R in (256, 384)},
)  # fmt: skip

"""What the pair-weighted average is tried with."""

from __future__ import annotations

import torch

from evofeed.kernels.ops.weighted_average import reference
from evofeed.kernels.ops.weighted_average.op import weighted_average
from evofeed.kernels.ops.weighted_average.reference import AverageWeights
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, H: int, width: int, sequences: int | None = None) -> Case:
    S, R, N = sequences or draw.sequences, draw.residues, H * width
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), v=(N, C), g=(N, C), o=(C, N))
    shares = torch.softmax(2 * draw(1, H, R, R), -1)
    return Case(
        {"m": draw(1, S, R, C), "shares": shares, **weights},
        lambda op, m, shares, **w: op(m, shares, AverageWeights(**w)),
    )


OPERATOR = Operator(
    weighted_average, reference.weighted_average,
    {"plain": lambda draw: _case(draw, 16, 2, 8)},
    {"more sequences than a tile": lambda draw: _case(draw, 32, 4, 16, sequences=67)},
    timed={
        f"{S} x {R}": (S, R, lambda draw: _case(draw, 64, 8, 32))
        for S, R in ((512, 256), (1024, 384))
    },
)  # fmt: skip

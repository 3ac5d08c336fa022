"""What triangle multiplication is tried with."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication import reference
from evofeed.kernels.ops.triangle_multiplication.op import triangle_multiplication
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.cases import Case, Draw, Op, Operator


def _case(
    draw: Draw, C: int, E: int, *, outgoing: bool = True, masked: bool = False, batch: int = 1
) -> Case:
    R = draw.residues
    pairs = {f"{side}_{kind}": (E, C) for side in "ab" for kind in "pg"}
    weights = draw.weights(
        norm_in_weight=(C,), norm_in_bias=(C,), **pairs,
        **{f"{name}_bias": (E,) for name in pairs}, norm_out_weight=(E,), norm_out_bias=(E,),
        z=(C, E), z_bias=(C,), g=(C, C), g_bias=(C,),
    )  # fmt: skip
    mask = draw.mask(batch, R, R) if masked else None
    drop = 2 * draw.mask(batch, R, C) if masked else None

    def run(op: Op, pairs: Tensor, **w: Tensor) -> Tensor:
        given = [None if t is None else t.to(pairs.dtype) for t in (mask, drop)]
        return op(
            pairs, TriangleWeights(**w), outgoing=outgoing, mask=given[0], residual=masked,
            drop_mask=given[1],
        )  # fmt: skip

    return Case({"pairs": draw(batch, R, R, C), **weights}, run)


OPERATOR = Operator(
    triangle_multiplication, reference.triangle_multiplication,
    {
        "plain": lambda draw: _case(draw, 32, 32, batch=2),
        "outgoing": lambda draw: _case(draw, 32, 16, masked=True),
        "incoming": lambda draw: _case(draw, 32, 16, masked=True, outgoing=False),
    },
    {
        "64 channels": lambda draw: _case(draw, 64, 64, masked=True, outgoing=False, batch=2),
        # whose output channels are taken in parts
        "256 channels": lambda draw: _case(
            replace(draw, residues=5), 256, 256, masked=True, outgoing=False
        ),
    },
    timed={
        f"{name} {R}": (R, R, partial(_case, C=128, E=128, outgoing=outgoing, masked=True))
        for R in (256, 384) for name, outgoing in (("outgoing", True), ("incoming", False))
    },
)  # fmt: skip

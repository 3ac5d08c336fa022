"""What the outer product mean is tried with."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from evofeed.kernels.ops.outer_product_mean import reference
from evofeed.kernels.ops.outer_product_mean.op import outer_product_mean
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.runtime.cases import Case, Draw, Op, Operator


def _case(draw: Draw, C: int, E: int, Z: int, residual: bool) -> Case:
    S, R = draw.sequences, draw.residues
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), w1=(E, C), b1=(E,), w2=(E, C), b2=(E,),
        out=(Z, E * E), out_bias=(Z,),
    )  # fmt: skip
    mask = draw.mask(1, S, R)
    tensors = {"m": draw(1, S, R, C)} | ({"z": draw(1, R, R, Z)} if residual else {})

    def run(op: Op, m: Tensor, z: Tensor | None = None, **w: Tensor) -> Tensor:
        return op(m, OuterWeights(**w), mask, z=z)

    return Case(tensors | weights, run)


OPERATOR = Operator(
    outer_product_mean, reference.outer_product_mean,
    {
        "plain": lambda draw: _case(draw, 32, 16, 16, False),
        "residual": lambda draw: _case(draw, 32, 16, 32, True),
    },
    timed={
        f"{S}x{R}x{C}": (S, R, partial(_case, C=C, E=32, Z=128, residual=False))
        for S, R, C in ((128, 256, 256), (512, 384, 256), (1024, 256, 64))
    },
)  # fmt: skip

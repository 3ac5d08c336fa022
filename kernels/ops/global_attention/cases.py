"""What global attention down the columns is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.global_attention import reference
from evofeed.kernels.ops.global_attention.op import global_column_attention
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(
    draw: Draw, C: int, H: int, width: int, residual: bool, sequences: int | None = None
) -> Case:
    S, R, N = sequences or draw.sequences, draw.residues, H * width
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), q=(N, C), k=(width, C), v=(width, C), g=(N, C),
        g_bias=(N,), o=(C, N), o_bias=(C,),
    )  # fmt: skip
    for name, factor in (("q", 3), ("k", 3), ("g", 2)):
        weights[name] = factor * weights[name]
    mask = draw.mask(1, S, R)
    mask[:, :, -1] = 0.0  # a column without a sequence averages all values
    return Case(
        {"x": draw(1, S, R, C), **weights},
        lambda op, x, **w: op(x, AttentionWeights(**w), H, mask, residual=residual),
    )


OPERATOR = Operator(
    global_column_attention, reference.global_column_attention,
    {
        "plain": lambda draw: _case(draw, 32, 8, 8, False),
        "residual": lambda draw: _case(draw, 32, 2, 32, True),
    },
    {
        "three heads": lambda draw: _case(draw, 64, 3, 16, True),
        "more sequences than a tile": lambda draw: _case(draw, 16, 4, 8, False, sequences=150),
    },
    timed={
        f"{S}x{R}": (S, R, lambda draw: _case(draw, 64, 8, 8, False))
        for S, R in ((1024, 256), (5120, 384))
    },
)  # fmt: skip

"""What gated attention is tried with: of rows and columns, of an MSA and of pairs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evofeed.kernels.ops.gated_attention import reference
from evofeed.kernels.ops.gated_attention.op import gated_attention
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.runtime.cases import Case, Draw, Op, Operator


def _case(
    draw: Draw, C: int, width: int, H: int, *, pairs: bool = False, bias: bool = False,
    masked: bool = False, dropped: bool = False, columns: bool = False, **options: Any,
) -> Case:  # fmt: skip
    S, R = draw.residues if pairs else draw.sequences, draw.residues
    N = H * width
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), q=(N, C), k=(N, C), v=(N, C), g=(N, C), g_bias=(N,),
        o=(C, N), o_bias=(C,), **({"pair": (H, C)} if pairs else {}),
    )  # fmt: skip
    for name in "qkvg":
        weights[name] = 2 * weights[name]
    tensors = {"x": draw(1, S, R, C)} | ({"bias": draw(1, H, R, R)} if bias else {})
    mask = draw.mask(1, S, R) if masked else None
    if mask is not None:
        mask[:, :, -1] = 0.0  # a column without a sequence
    drop = 2 * draw.mask(1, S if columns else R, C) if dropped else None

    def run(op: Op, x: Tensor, bias: Tensor | None = None, **w: Tensor) -> Tensor:
        given = None if drop is None else drop.to(x.dtype)
        return op(
            x, AttentionWeights(**w), H, bias=bias, mask=mask, columns=columns, drop_mask=given,
            drop_columnwise=columns and dropped, **options,
        )  # fmt: skip

    return Case(tensors | weights, run)


OPERATOR = Operator(
    gated_attention, reference.gated_attention,
    {
        "plain": lambda draw: _case(draw, 32, 8, 2),
        "columns": lambda draw: _case(draw, 32, 16, 4, masked=True, columns=True, residual=True),
        "of a bias": lambda draw: _case(draw, 16, 8, 4, bias=True, masked=True),
        "starting node": lambda draw: _case(
            draw, 32, 16, 2, pairs=True, masked=True, dropped=True, residual=True
        ),
        "starting node, turned": lambda draw: _case(draw, 32, 8, 2, pairs=True, turned=True),
        "ending node": lambda draw: _case(
            draw, 32, 8, 2, pairs=True, masked=True, dropped=True, columns=True, residual=True
        ),
        "ending node, turned": lambda draw: _case(
            draw, 32, 16, 2, pairs=True, masked=True, columns=True, turned=True, residual=True
        ),
    },
    {
        "heads of 32": lambda draw: _case(draw, 32, 32, 2, pairs=True, residual=True),
        "columns of 64 channels": lambda draw: _case(
            draw, 64, 8, 8, masked=True, dropped=True, columns=True, residual=True
        ),
        "rows of 256 channels": lambda draw: _case(
            draw, 256, 32, 8, bias=True, masked=True, dropped=True, residual=True
        ),
        "ending node, 128 channels": lambda draw: _case(
            draw, 128, 32, 4, pairs=True, masked=True, dropped=True, columns=True, residual=True
        ),
    },
    timed={
        **{f"row {S}x{R}": (S, R, lambda draw: _case(draw, 256, 32, 8, bias=True, masked=True))
           for S, R in ((128, 256), (512, 384))},
        **{f"triangle {R}": (R, R, lambda draw: _case(draw, 128, 32, 4, pairs=True, masked=True))
           for R in (256, 384)},
    },
)  # fmt: skip

"""What attention to templates is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.template_attention import reference
from evofeed.kernels.ops.template_attention.op import template_attention
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, H: int, masked: bool, templates: int | None = None) -> Case:
    T, R = templates or draw.sequences, draw.residues
    bias = -1e5 * (1 - draw.mask(2, T)) if masked else None
    if bias is not None:
        bias[:, 0] = 0.0
    return Case(
        {"q": draw(2, R, R, C), "k": draw(2, T, R, R, C), "v": draw(2, T, R, R, C)},
        lambda op, q, k, v: op(q, k, v, H, bias),
    )


OPERATOR = Operator(
    template_attention, reference.template_attention,
    {
        "plain": lambda draw: _case(draw, 16, 2, False),
        "of a mask": lambda draw: _case(draw, 16, 2, True),
    },
    {
        "of one": lambda draw: _case(draw, 64, 4, True, 1),
        "of four": lambda draw: _case(draw, 64, 4, True, 4),
    },
    timed={
        f"{R} residues, 4 templates": (4, R, lambda draw: _case(draw, 64, 4, False))
        for R in (256, 384)
    },
)  # fmt: skip

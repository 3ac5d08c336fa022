"""What attention with a bias is tried with."""

from __future__ import annotations

from functools import partial

from evofeed.kernels.ops.attention import reference
from evofeed.kernels.ops.attention.op import biased_attention
from evofeed.kernels.runtime.cases import Case, Draw, Operator

H = 2


def _case(draw: Draw, width: int, biased: bool, masked: bool) -> Case:
    S, R = draw.sequences, draw.residues
    tensors = {name: draw(1, S, R, H, width) for name in "qkv"}
    mask = draw.mask(1, S, R) if masked else None
    if mask is not None:
        mask[0, 0] = 0.0  # a row without a valid key
    return Case(
        tensors | ({"bias": 2 * draw(1, H, R, R)} if biased else {}),
        lambda op, **t: op(**t, mask=mask),
    )


OPERATOR = Operator(
    biased_attention, reference.biased_attention,
    {
        "plain": lambda draw: _case(draw, 8, False, False),
        "of a bias": lambda draw: _case(draw, 16, True, False),
        "of a mask": lambda draw: _case(draw, 16, False, True),
        "of both": lambda draw: _case(draw, 8, True, True),
    },
    {f"heads {width} wide": partial(_case, width=width, biased=True, masked=True)
     for width in (20, 32, 64)},
)  # fmt: skip

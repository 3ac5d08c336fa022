"""What the masked softmax is tried with."""

from __future__ import annotations

from functools import partial

from evofeed.kernels.ops.softmax import reference
from evofeed.kernels.ops.softmax.op import masked_softmax
from evofeed.kernels.runtime.cases import Case, Draw, Operator

H = 2


def _case(draw: Draw, biased: bool, masked: bool, keys: int | None = None) -> Case:
    S, R, K = draw.sequences, draw.residues, keys or draw.residues
    mask = draw.mask(2, S, K) if masked else None
    if mask is not None:
        mask[1, 0] = 0.0  # no valid key
    bias = {"bias": draw(2, H, R, K)} if biased else {}
    return Case({"x": draw(2, S, H, R, K), **bias}, lambda op, **t: op(**t, mask=mask))


OPERATOR = Operator(
    masked_softmax, reference.masked_softmax,
    {
        "plain": lambda draw: _case(draw, False, False),
        "of a bias": lambda draw: _case(draw, True, False),
        "of both": lambda draw: _case(draw, True, True),
    },
    {f"{keys} keys": partial(_case, biased=True, masked=True, keys=keys) for keys in (5, 33, 60)},
)  # fmt: skip

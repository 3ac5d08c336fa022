"""`layer_norm` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.runtime.cases import Case, Cases, Draw

__all__ = ["layer_norm"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, affine."""
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps)


def _case(draw: Draw, C: int, *, turned: bool = False) -> Case:
    # 63 rows: at 69 and 384 channels the sums that are the bias gradient cancel to almost nothing
    rows = (3, 21) if draw.residues > 3 else (draw.sequences, draw.residues)
    weights = draw.weights(weight=(C,), bias=(C,))
    return Case(
        {"x": 2 * draw(*rows, C) + 0.5, **weights},
        lambda op, x, weight, bias: op(x.transpose(0, 1) if turned else x, weight, bias),
    )


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 16),
        "of a view": lambda draw: _case(draw, 64, turned=True),
    },
    {f"{C} channels": partial(_case, C=C) for C in (7, 100, 128, 384)},
)  # fmt: skip

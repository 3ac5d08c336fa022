"""`transition` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["TransitionWeights", "transition"]


@dataclass(frozen=True, slots=True)
class TransitionWeights(Parameters):
    """Parameters of one transition, as OpenFold names them."""

    norm_weight: Tensor
    norm_bias: Tensor
    w1: Tensor
    b1: Tensor
    w2: Tensor
    b2: Tensor


def transition(
    x: Tensor,
    weights: TransitionWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """mask * linear_2(relu(linear_1(layer_norm(x)))), plus x if `residual`.

    Args:
        x: `[..., C]`.
        weights: the parameters.
        mask: `[...]` factor of the update, or None.
        residual: True to add x.
        eps: of the norm.
    """
    w = weights
    hidden = F.linear(layer_norm(x, w.norm_weight, w.norm_bias, eps), w.w1, w.b1).relu()
    update = F.linear(hidden, w.w2, w.b2)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return x + update if residual else update


def _case(draw: Draw, C: int, n: int, *, masked: bool = False, residual: bool = False) -> Case:
    rows, N = (draw.sequences, draw.residues), n * C
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), w1=(N, C), b1=(N,), w2=(C, N), b2=(C,))
    mask = draw.mask(*rows) if masked else None
    return Case(
        {"x": draw(*rows, C), **weights},
        lambda op, x, **w: op(x, TransitionWeights(**w), mask=mask, residual=residual),
    )


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 16, 2),
        "of a mask": lambda draw: _case(draw, 32, 4, masked=True),
        "residual": lambda draw: _case(draw, 64, 2, residual=True),
        "256 channels": lambda draw: _case(draw, 256, 2, masked=True),
    },
    timed={
        "MSA 128x256": (128, 256, lambda draw: _case(draw, 256, 4, masked=True)),
        "pairs 256": (256, 256, lambda draw: _case(draw, 128, 4, masked=True)),
    },
)  # fmt: skip

"""`swiglu_transition` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["SwigluWeights", "swiglu_transition"]


@dataclass(frozen=True, slots=True)
class SwigluWeights(Parameters):
    """Parameters of one SwiGLU transition: silu(gate x) * (value x), then out."""

    norm_weight: Tensor
    norm_bias: Tensor
    gate: Tensor
    value: Tensor
    out: Tensor


def swiglu_transition(
    x: Tensor,
    weights: SwigluWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """mask * out(silu(gate(layer_norm(x))) * value(layer_norm(x))), plus x if `residual`.

    Args:
        x: `[..., C]`.
        weights: the parameters, no biases.
        mask: `[...]` factor of the update, or None.
        residual: True to add x.
        eps: of the norm.
    """
    w = weights
    xn = layer_norm(x, w.norm_weight, w.norm_bias, eps)
    update = F.linear(F.silu(F.linear(xn, w.gate)) * F.linear(xn, w.value), w.out)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return x + update if residual else update


def _case(draw: Draw, C: int, n: int, *, masked: bool = False, residual: bool = False) -> Case:
    rows, N = (draw.sequences, draw.residues), n * C
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), gate=(N, C), value=(N, C), out=(C, N))
    mask = draw.mask(*rows) if masked else None
    return Case(
        {"x": draw(*rows, C), **weights},
        lambda op, x, **w: op(x, SwigluWeights(**w), mask=mask, residual=residual),
    )


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 16, 2),
        "of a mask": lambda draw: _case(draw, 16, 4, masked=True),
        "residual": lambda draw: _case(draw, 24, 2, residual=True),
        "of both": lambda draw: _case(draw, 24, 4, masked=True, residual=True),
        "256 channels": lambda draw: _case(draw, 256, 2, masked=True, residual=True),
    },
    {f"{C} channels": partial(_case, C=C, n=4, masked=True, residual=True) for C in (64, 128)},
    timed={f"pairs {R}": (R, R, lambda draw: _case(draw, 128, 4, masked=True)) for R in (256, 384)},
)  # fmt: skip

"""`pair_bias` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw

__all__ = ["pair_bias"]


def pair_bias(
    z: Tensor,
    norm_weight: Tensor,
    norm_bias: Tensor,
    weight: Tensor,
    eps: float = 1e-5,
    scale: float = 1.0,
) -> Tensor:
    """Attention bias `[B, H, I, J]` of pairs z `[B, I, J, C]`: scale * linear(layer_norm(z)).

    Args:
        z: the pair representation.
        norm_weight: `[C]`.
        norm_bias: `[C]`.
        weight: `[H, C]`.
        eps: of the norm.
        scale: factor of the result.
    """
    if not torch.is_autocast_enabled(z.device.type):
        weight = weight.to(z.dtype)
    return scale * F.linear(layer_norm(z, norm_weight, norm_bias, eps), weight).movedim(-1, 1)


def _case(draw: Draw, C: int, H: int, scale: float) -> Case:
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), weight=(H, C))
    return Case(
        {"z": draw(2, draw.residues, draw.residues, C), **weights},
        lambda op, **t: op(**t, scale=scale),
    )


CASES = Cases(
    {
        "four heads": lambda draw: _case(draw, 32, 4, 2.0),
        "eight heads": lambda draw: _case(draw, 32, 8, 1.0),
    },
    timed={f"{R} residues": (1, R, lambda draw: _case(draw, 128, 8, 1.0)) for R in (256, 384)},
)  # fmt: skip

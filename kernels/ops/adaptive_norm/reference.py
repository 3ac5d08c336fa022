"""`adaptive_norm` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.runtime.cases import Case, Cases, Draw
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AdaptiveWeights", "adaptive_norm"]


@dataclass(frozen=True, slots=True)
class AdaptiveWeights(Parameters):
    """Parameters: the scale of the norm of s, its two layers and the first one's bias."""

    norm_weight: Tensor
    gate: Tensor
    gate_bias: Tensor
    shift: Tensor


def adaptive_norm(a: Tensor, s: Tensor, weights: AdaptiveWeights, *, eps: float = 1e-5) -> Tensor:
    """sigmoid(gate(norm(s))) * norm(a) + shift(norm(s)), of a's shape and type.

    Args:
        a: `[..., C]`.
        s: `[..., K]`, the condition.
        weights: the parameters; the norm of a has none.
        eps: of both norms.

    Source: AF3 SI, algorithm 26.
    """
    w = weights
    sn = F.layer_norm(s, s.shape[-1:], w.norm_weight, None, eps)
    scale = torch.sigmoid(F.linear(sn, w.gate, w.gate_bias))
    return scale * F.layer_norm(a, a.shape[-1:], None, None, eps) + F.linear(sn, w.shift)


def _case(draw: Draw, C: int, K: int) -> Case:
    rows = draw.sequences, draw.residues
    weights = draw.weights(norm_weight=(K,), gate=(C, K), gate_bias=(C,), shift=(C, K))
    return Case(
        {"a": draw(*rows, C), "s": draw(*rows, K), **weights},
        lambda op, a, s, **w: op(a, s, AdaptiveWeights(**w)),
    )


CASES = Cases(
    {"plain": lambda draw: _case(draw, 16, 24), "of a narrow s": lambda draw: _case(draw, 48, 16)},
    {"of tokens": lambda draw: _case(draw, 768, 384)},
    timed={"48 x 384": (48, 384, lambda draw: _case(draw, 768, 384))},
)  # fmt: skip

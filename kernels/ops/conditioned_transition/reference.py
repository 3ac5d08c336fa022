"""`conditioned_transition` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights, adaptive_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["ConditionedWeights", "conditioned_transition"]


@dataclass(frozen=True, slots=True)
class ConditionedWeights(Parameters):
    """Parameters: out(silu(silu x) * (value x) * (factor x)), gated by last(s); x is adapted."""

    norm_weight: Tensor
    gate: Tensor
    gate_bias: Tensor
    shift: Tensor
    silu: Tensor
    value: Tensor
    out: Tensor
    last: Tensor
    last_bias: Tensor
    factor: Tensor | None = None

    def adaptive(self) -> AdaptiveWeights:
        """The parameters of the adaptive norm."""
        return AdaptiveWeights(self.norm_weight, self.gate, self.gate_bias, self.shift)


def conditioned_transition(
    a: Tensor,
    s: Tensor,
    weights: ConditionedWeights,
    *,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """mask * sigmoid(last(s)) * out(silu(silu x) * value x * factor x), plus a if `residual`.

    x is the adaptive norm of a conditioned on s.

    Args:
        a: `[..., C]`.
        s: `[..., K]`, the condition.
        weights: the parameters; only Boltz has a `factor`.
        mask: `[...]` factor of the update, or None.
        residual: True to add a.
        eps: of both norms.

    Source: AF3 SI, algorithm 25.
    """
    w = weights
    x = adaptive_norm(a, s, w.adaptive(), eps=eps)
    hidden = F.silu(F.linear(x, w.silu)) * F.linear(x, w.value)
    hidden = hidden if w.factor is None else hidden * F.linear(x, w.factor)
    update = torch.sigmoid(F.linear(s, w.last, w.last_bias)) * F.linear(hidden, w.out)
    update = update if mask is None else update * mask[..., None].to(update.dtype)
    return a + update if residual else update


def _case(draw: Draw, C: int, K: int, N: int, factor: bool, masked: bool) -> Case:
    rows = draw.sequences, draw.residues
    weights = draw.weights(
        norm_weight=(K,), gate=(C, K), gate_bias=(C,), shift=(C, K), silu=(N, C), value=(N, C),
        out=(C, N), last=(C, K), last_bias=(C,), **({"factor": (N, C)} if factor else {}),
    )  # fmt: skip
    mask = draw.mask(*rows) if masked else None
    return Case(
        {"a": draw(*rows, C), "s": draw(*rows, K), **weights},
        lambda op, a, s, **w: op(a, s, ConditionedWeights(**w), mask=mask, residual=masked),
    )


CASES = Cases(
    {
        "of a mask": lambda draw: _case(draw, 16, 24, 32, False, True),
        "of three layers": lambda draw: _case(draw, 48, 16, 72, True, False),
    },
    {"of tokens": lambda draw: _case(draw, 768, 384, 1536, False, True)},
    timed={"48 x 384": (48, 384, lambda draw: _case(draw, 768, 384, 1536, False, True))},
)  # fmt: skip

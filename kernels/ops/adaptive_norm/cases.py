"""What the adaptive norm is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.adaptive_norm import reference
from evofeed.kernels.ops.adaptive_norm.op import adaptive_norm
from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights
from evofeed.kernels.runtime.cases import Case, Draw, Operator


def _case(draw: Draw, C: int, K: int) -> Case:
    rows = draw.sequences, draw.residues
    weights = draw.weights(norm_weight=(K,), gate=(C, K), gate_bias=(C,), shift=(C, K))
    return Case(
        {"a": draw(*rows, C), "s": draw(*rows, K), **weights},
        lambda op, a, s, **w: op(a, s, AdaptiveWeights(**w)),
    )


OPERATOR = Operator(
    adaptive_norm, reference.adaptive_norm,
    {"plain": lambda draw: _case(draw, 16, 24), "of a narrow s": lambda draw: _case(draw, 48, 16)},
    {"of tokens": lambda draw: _case(draw, 768, 384)},
    timed={"48 x 384": (48, 384, lambda draw: _case(draw, 768, 384))},
)  # fmt: skip

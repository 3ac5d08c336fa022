"""What the conditioned transition is tried with."""

from __future__ import annotations

from evofeed.kernels.ops.conditioned_transition import reference
from evofeed.kernels.ops.conditioned_transition.op import conditioned_transition
from evofeed.kernels.ops.conditioned_transition.reference import ConditionedWeights
from evofeed.kernels.runtime.cases import Case, Draw, Operator


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


OPERATOR = Operator(
    conditioned_transition, reference.conditioned_transition,
    {
        "of a mask": lambda draw: _case(draw, 16, 24, 32, False, True),
        "of three layers": lambda draw: _case(draw, 48, 16, 72, True, False),
    },
    {"of tokens": lambda draw: _case(draw, 768, 384, 1536, False, True)},
    timed={"48 x 384": (48, 384, lambda draw: _case(draw, 768, 384, 1536, False, True))},
)  # fmt: skip

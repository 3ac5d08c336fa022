"""What attention of tokens is tried with."""

from __future__ import annotations

from torch import Tensor

from evofeed.kernels.ops.conditioned_attention import reference
from evofeed.kernels.ops.conditioned_attention.op import conditioned_attention
from evofeed.kernels.ops.conditioned_attention.reference import ConditionedAttentionWeights
from evofeed.kernels.runtime.cases import Case, Draw, Op, Operator


def _case(draw: Draw, C: int, K: int | None, width: int, H: int, masked: bool) -> Case:
    S, R, N = draw.sequences, draw.residues, H * width
    core = {"q": (N, C), "q_bias": (N,), "k": (N, C), "v": (N, C), "g": (N, C), "o": (C, N)}
    tensors = {"a": draw(1, S, R, C), "bias": draw(1, H, R, R)}
    if K is None:
        tensors |= draw.weights(norm_weight=(C,), **core, norm_bias=(C,))
    else:
        of_s = {"gate": (C, K), "gate_bias": (C,), "shift": (C, K), "last": (C, K)}
        tensors["s"] = draw(1, S, R, K)
        tensors |= draw.weights(norm_weight=(K,), **core, **of_s, last_bias=(C,))
    mask = draw.mask(1, S, R) if masked else None

    def run(op: Op, a: Tensor, bias: Tensor, s: Tensor | None = None, **w: Tensor) -> Tensor:
        norm_bias = w.pop("norm_bias", None)
        weights = ConditionedAttentionWeights(norm_bias=norm_bias, **w)
        return op(a, s, weights, H, bias=bias, mask=mask, residual=masked)

    return Case(tensors, run)


OPERATOR = Operator(
    conditioned_attention, reference.conditioned_attention,
    # No parameter has fewer than 24 numbers: of 16 in 16 bits chance makes the error 1.5 times.
    {
        "plain": lambda draw: _case(draw, 48, None, 24, 2, False),
        "of a mask": lambda draw: _case(draw, 48, None, 24, 2, True),
        "conditioned": lambda draw: _case(draw, 32, 24, 48, 2, True),
        "conditioned, eight heads": lambda draw: _case(draw, 48, 40, 8, 8, False),
    },
    timed={
        f"{copies} x {tokens}": (copies, tokens, lambda draw: _case(draw, 768, 384, 48, 16, True))
        for copies, tokens in ((48, 384), (16, 768))
    },
)  # fmt: skip

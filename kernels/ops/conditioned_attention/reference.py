"""`conditioned_attention` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights, adaptive_norm
from evofeed.kernels.ops.attention.reference import biased_attention
from evofeed.kernels.runtime.cases import Case, Cases, Draw, Op
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["ConditionedAttentionWeights", "conditioned_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionedAttentionWeights(Parameters):
    """Parameters; `norm_weight` scales the norm of s, or of a without s."""

    norm_weight: Tensor
    norm_bias: Tensor | None = None
    """Of the norm of a, without s."""
    gate: Tensor | None = None
    """With s: this and the next two are the adaptive norm's layers."""
    gate_bias: Tensor | None = None
    shift: Tensor | None = None
    q: Tensor
    q_bias: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    o: Tensor
    last: Tensor | None = None
    """With s: this and its bias are the last gate."""
    last_bias: Tensor | None = None

    def adaptive(self) -> AdaptiveWeights:
        """The parameters of the adaptive norm."""
        assert self.gate is not None and self.gate_bias is not None and self.shift is not None
        return AdaptiveWeights(self.norm_weight, self.gate, self.gate_bias, self.shift)


def conditioned_attention(
    a: Tensor,
    s: Tensor | None,
    weights: ConditionedAttentionWeights,
    heads: int,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    residual: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """sigmoid(last(s)) * o(sigmoid(g x) * attention(x)), plus a if `residual`.

    x is the adaptive norm of a conditioned on s; without s it is a's norm, without the last
    gate.

    Args:
        a: `[B, R, N, C]`.
        s: `[B, R, N, K]`, the condition, or None.
        weights: the parameters.
        heads: H.
        bias: `[B, H, N, N]`, shared by the R copies, or None.
        mask: `[B, R, N]`, 1 where a key may be attended to, or None.
        residual: True to add a.
        eps: of the norms.

    Source: AF3 SI, algorithm 24.
    """
    w = weights
    if s is None:
        x = F.layer_norm(a, a.shape[-1:], w.norm_weight, w.norm_bias, eps)
    else:
        x = adaptive_norm(a, s, w.adaptive(), eps=eps)
    q, k, v = (
        F.linear(x, weight, offset).view(*a.shape[:-1], heads, -1)
        for weight, offset in ((w.q, w.q_bias), (w.k, None), (w.v, None))
    )
    o = biased_attention(q, k, v, None if bias is None else bias.to(q.dtype), mask).flatten(-2)
    update = F.linear(torch.sigmoid(F.linear(x, w.g)) * o, w.o)
    if s is not None:
        assert w.last is not None
        update = torch.sigmoid(F.linear(s, w.last, w.last_bias)) * update
    return a + update if residual else update


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


CASES = Cases(
    # Parameters have at least 24 numbers: with 16, in 16 bits, the error is 1.5 times by chance.
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

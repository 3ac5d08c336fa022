"""`conditioned_attention` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.adaptive_norm.reference import AdaptiveWeights, adaptive_norm
from evofeed.kernels.ops.attention.reference import biased_attention
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["ConditionedAttentionWeights", "conditioned_attention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionedAttentionWeights(Parameters):
    """Parameters; with s `norm_weight` scales the norm of s, without it that of a."""

    norm_weight: Tensor
    norm_bias: Tensor | None = None
    """Without s."""
    gate: Tensor | None = None
    """This and the next two: with s, the adaptive norm's layers."""
    gate_bias: Tensor | None = None
    shift: Tensor | None = None
    q: Tensor
    q_bias: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    o: Tensor
    last: Tensor | None = None
    """With s, of the last gate, as is its bias."""
    last_bias: Tensor | None = None

    def adaptive(self) -> AdaptiveWeights:
        """Those of the adaptive norm."""
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
    """Norm (adaptive with s), attention, gate, output layer, a gate that s gives, residual."""
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

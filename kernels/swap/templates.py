"""Attention of every pair to the templates at that pair, swapped."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.ops.template_attention.op import template_attention, template_attention_fits
from evofeed.kernels.swap.forms import children_trouble, linear_trouble, signature_trouble


class FusedTemplateAttention(Fused):
    """Forward of an attention of every pair to the templates at that pair."""

    def forward(
        self: Any, t: Tensor, z: Tensor, template_mask: Tensor | None = None, **how: Any
    ) -> Tensor:
        """As the original's; `how` says which implementation of the same it would take."""
        mha, heads = self.mha, self.mha.no_heads
        width = mha.linear_q.weight.shape[0] // heads
        if not template_attention_fits(z, t.shape[-4], heads, width):
            return super().forward(t, z, template_mask, **how)  # type: ignore[misc,no-any-return]
        bias = None if template_mask is None else self.inf * (template_mask - 1)
        q, k, v = mha.linear_q(z), mha.linear_k(t), mha.linear_v(t)
        return mha.linear_o(template_attention(q, k, v, heads, bias))  # type: ignore[no-any-return]


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these."""
    if type(module).__name__ != "TemplatePointwiseAttention":
        return None
    return _template_trouble(module) or FusedTemplateAttention


def _template_trouble(module: Any) -> str | None:
    trouble = children_trouble(module, {"mha"}) or signature_trouble(
        module, "t", "z", "template_mask"
    )
    layers = ("linear_q", "linear_k", "linear_v", "linear_o")
    trouble = trouble or children_trouble(module.mha, layers)
    return trouble or linear_trouble(
        (name, getattr(module.mha, name), None, None, name == "linear_o") for name in layers
    )

"""Fused forward of the block around MSA and pairs: dropout and residual join the op before them.

A swapped block calls the ops directly with its modules' parameters: forward
hooks on the modules inside do not fire.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.gated_attention.op import gated_attention, gated_attention_fits
from evofeed.kernels.ops.outer_product_mean.op import (
    outer_product_mean_fits,
    outer_product_mean_with_input,
)
from evofeed.kernels.ops.outer_product_mean.reference import OuterWeights
from evofeed.kernels.ops.pair_bias.op import pair_bias_fits
from evofeed.kernels.ops.transition.op import transition, transition_fits
from evofeed.kernels.swap.forms import children, has, signature_trouble
from evofeed.kernels.swap.modules import (
    FusedMSAAttention,
    FusedOuterProductMean,
    FusedTransition,
    global_attention,
    row_attention,
)
from evofeed.kernels.swap.pair_ops import drop_mask, dropout_trouble
from evofeed.kernels.swap.pair_stacks import form_of
from evofeed.kernels.swap.parameters import (
    attention_weights,
    covers,
    four_axes,
    outer_weights,
    shaped,
    three_axes,
    transition_weights,
)


class FusedEvoformerBlock(Recordable):
    """Forward of an Evoformer or extra-MSA block."""

    def forward(
        self: Any, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, *positional: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As the original's."""
        rows, last, outer = (
            attention_weights(self.msa_att_row.layer_norm_m, self.msa_att_row.mha),
            transition_weights(self.msa_transition), outer_weights(self.outer_product_mean),
        )  # fmt: skip
        flat = four_axes(m)
        fits = (
            not options.get("inplace_safe", False)
            and not positional
            and covers(msa_mask, m)
            and gated_attention_fits(flat, rows, self.msa_att_row.mha.no_heads)
            and pair_bias_fits(four_axes(z), self.msa_att_row.linear_z.weight)
            and transition_fits(m, last)
            and outer_product_mean_fits(flat, outer)
            and m.dtype == z.dtype
        )
        if not fits:
            return super().forward(m, z, msa_mask, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        msa_mask = msa_mask.expand(m.shape[:-1])
        if self.opm_first:
            m, z = self._outer(m, z, msa_mask, outer)
            flat = four_axes(m)
        made = row_attention(
            self.msa_att_row, flat, z, three_axes(msa_mask), residual=True,
            drop_mask=drop_mask(self.msa_dropout_layer, flat, flat.shape[2]),
        )  # fmt: skip
        assert made is not None and made[1] is not None
        z, m = made[1], shaped(made[0], m)
        m = self._column_attention(m, msa_mask)
        masked = options.get("_mask_trans", True)
        if hasattr(self, "_masks_msa"):
            masked = self._masks_msa(masked)
        m = transition(
            m, last, mask=msa_mask if masked else None, residual=True,
            eps=self.msa_transition.layer_norm.eps,
        )  # fmt: skip
        if not self.opm_first:
            m, z = self._outer(m, z, msa_mask, outer)
        return m, self.pair_stack(z, pair_mask, **options)

    def _outer(
        self: Any, m: Tensor, z: Tensor, mask: Tensor, weights: OuterWeights
    ) -> tuple[Tensor, Tensor]:
        module, rows = self.outer_product_mean, three_axes(mask)
        assert rows is not None
        update, flat = outer_product_mean_with_input(
            four_axes(m), weights, rows, z=four_axes(z), eps=module.eps,
            norm_eps=module.layer_norm.eps,
        )  # fmt: skip
        return shaped(flat, m), shaped(update, z)

    def _column_attention(self: Any, m: Tensor, mask: Tensor) -> Tensor:
        module = getattr(self, "msa_att_col", None)
        if module is None:
            return m
        inner = getattr(module, "_msa_att", None)
        if inner is None:  # global attention
            fused = global_attention(module, m, mask, residual=True)
            return m + module(m, mask) if fused is None else fused
        flat = four_axes(m)
        update = gated_attention(
            flat, attention_weights(inner.layer_norm_m, inner.mha), inner.mha.no_heads,
            mask=three_axes(mask), columns=True, residual=True, eps=inner.layer_norm_m.eps,
        )  # fmt: skip
        return shaped(update, m)


PARTS = {
    "msa_att_row": FusedMSAAttention,
    "msa_transition": FusedTransition,
    "outer_product_mean": FusedOuterProductMean,
}


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those of a known form, all of whose parts are fused."""
    if not has(module, *PARTS, "pair_stack") or hasattr(module, "ckpt"):
        # OpenFold's extra-MSA block checkpoints its parts itself; its modules are swapped.
        return None
    names = {*PARTS, "pair_stack", "msa_dropout_layer"}
    if children(module) not in (names, names | {"msa_att_col"}):
        return f"has {', '.join(sorted(children(module)))}: a form that no fused op knows"
    for name, known in PARTS.items():
        if form_of(getattr(module, name)) is not known:
            return f"{name} is of a form that no fused op knows"
    if not isinstance(getattr(module, "opm_first", None), bool):
        return "does not say in which order it works"
    trouble = dropout_trouble(module.msa_dropout_layer, -3)
    trouble = trouble or signature_trouble(module, "m", "z", "msa_mask", "pair_mask")
    return trouble or FusedEvoformerBlock

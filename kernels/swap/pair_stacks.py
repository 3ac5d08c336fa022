"""Fused forwards of AF2's blocks of pairs."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.transition.op import transition, transition_fits
from evofeed.kernels.swap import modules
from evofeed.kernels.swap.forms import children, has, signature_trouble, turns_bias
from evofeed.kernels.swap.modules import (
    FusedTransition,
    FusedTriangleAttention,
    FusedTriangleMultiplication,
)
from evofeed.kernels.swap.pair_ops import PairOps, dropout_trouble
from evofeed.kernels.swap.parameters import (
    four_axes,
    shaped,
    three_axes,
    transition_weights,
    within,
)


def _finish(block: Any, z: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    masked, layer = options.get("_mask_trans", True), block.pair_transition
    return transition(
        z, transition_weights(layer), mask=mask if masked else None, residual=True,
        eps=layer.layer_norm.eps,
    )  # fmt: skip


class FusedPairStack(Recordable):
    """Forward of the pair half of a block."""

    def forward(
        self: Any, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        flat, ops = four_axes(z), PairOps.of(self)
        transposes = self.tri_att_start.starting and self.tri_att_end.starting  # the block does
        fits = ops.fit(flat) and transition_fits(flat, transition_weights(self.pair_transition))
        fits = fits and within(pair_mask, z)
        if positional or options.get("inplace_safe", False) or not transposes or not fits:
            return super().forward(z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        mask, drop = three_axes(pair_mask, z), self.ps_dropout_row_layer
        return shaped(_finish(self, ops.run_with(flat, mask, drop, drop), mask, options), z)


class FusedTemplateBlock(Recordable):
    """Forward of a block of the template pair stack, all templates at once."""

    def forward(self: Any, z: Tensor, mask: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's; OpenFold's draws its dropout for one template after the other."""
        flat, ops = four_axes(z), PairOps.of(self)
        fits = ops.fit(flat) and transition_fits(flat, transition_weights(self.pair_transition))
        if positional or options.get("inplace_safe", False) or not (fits and within(mask, z)):
            return super().forward(z, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        pairs = three_axes(mask, z)
        flat = ops.run_with(flat, pairs, self.dropout_row, self.dropout_col, self.tri_mul_first)
        return shaped(_finish(self, flat, pairs, options), z)


PARTS = {
    "tri_mul_out": FusedTriangleMultiplication,
    "tri_mul_in": FusedTriangleMultiplication,
    "tri_att_start": FusedTriangleAttention,
    "tri_att_end": FusedTriangleAttention,
    "pair_transition": FusedTransition,
}


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which modules are swapped for these: those of a known form, all of whose parts are fused."""
    if not has(module, *PARTS):
        return None
    stack, template = {*PARTS, "ps_dropout_row_layer"}, {*PARTS, "dropout_row", "dropout_col"}
    if children(module) not in (stack, template):
        return None
    for name, known in PARTS.items():
        if form_of(getattr(module, name)) is not known:
            return f"{name} is of a form that no fused op knows"
    if turns_bias(module.tri_att_end):
        return "its ending node may transpose its bias, which AF2's does not"
    if children(module) == stack:
        if hasattr(module, "tri_mul_first"):
            return "says in which order it works, which AF2's blocks do not"
        trouble = dropout_trouble(module.ps_dropout_row_layer, -3)
        return trouble or signature_trouble(module, "z", "pair_mask") or FusedPairStack
    if not isinstance(getattr(module, "tri_mul_first", None), bool):
        return "does not say in which order it works"
    trouble = dropout_trouble(module.dropout_row, -3) or dropout_trouble(module.dropout_col, -2)
    return trouble or signature_trouble(module, "z|t", "mask") or FusedTemplateBlock


def form_of(module: nn.Module) -> type[Fused] | str | None:
    """The fused form of a part, swapped already or not."""
    return module.mixin if isinstance(module, Fused) else modules.rule(module)

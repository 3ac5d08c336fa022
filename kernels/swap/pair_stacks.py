"""Fused forwards of the blocks of pairs, where dropout and residual join the op before them.

A swapped block calls the ops directly with its modules' parameters: forward
hooks on the modules inside do not fire.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.gated_attention.op import (
    AttentionWeights,
    gated_attention,
    gated_attention_fits,
)
from evofeed.kernels.ops.transition.op import TransitionWeights, transition, transition_fits
from evofeed.kernels.ops.triangle_multiplication.op import (
    TriangleWeights,
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.runtime.one_pass import once
from evofeed.kernels.swap import modules
from evofeed.kernels.swap.forms import children, has, signature_trouble, turns_bias
from evofeed.kernels.swap.modules import (
    FusedTransition,
    FusedTriangleAttention,
    FusedTriangleMultiplication,
)
from evofeed.kernels.swap.parameters import (
    attention_weights,
    four_axes,
    pair_layer,
    shaped,
    three_axes,
    transition_weights,
    triangle_weights,
)


def drop_mask(layer: Any, x: Tensor, rows: int) -> Tensor | None:
    """A fresh rowwise mask `[B, rows, C]` of a shared dropout layer; None if it drops nothing."""
    if not layer.training or layer.r == 0.0:
        return None
    shape = (x.shape[0], rows, x.shape[-1])
    ones = once(("ones", shape, x.dtype, x.device), (), lambda: x.new_ones(shape))
    return F.dropout(ones, layer.r, training=True)


class _Parts(NamedTuple):
    """The modules of a block with their weights, in the order of their names."""

    multiplications: list[tuple[Any, TriangleWeights]]  # outgoing, incoming
    attentions: list[tuple[Any, AttentionWeights]]  # starting node, ending node
    transition: TransitionWeights

    @classmethod
    def of(cls, block: Any) -> _Parts:
        return cls(
            [(m, triangle_weights(m)) for m in (block.tri_mul_out, block.tri_mul_in)],
            [
                (m, attention_weights(m.layer_norm, m.mha, pair_layer(m).weight))
                for m in (block.tri_att_start, block.tri_att_end)
            ],
            transition_weights(block.pair_transition),
        )

    def fit(self, z: Tensor) -> bool:
        """Whether the kernels take pairs `[B, I, J, C]` like these."""
        return (
            all(triangle_multiplication_fits(z, w) for _, w in self.multiplications)
            and all(gated_attention_fits(z, w, m.mha.no_heads) for m, w in self.attentions)
            and transition_fits(z, self.transition)
        )

    def multiply(self, z: Tensor, mask: Tensor | None, drop: Any) -> Tensor:
        for module, weights in self.multiplications:
            z = triangle_multiplication(
                z, weights, outgoing=module._outgoing, mask=mask, residual=True,
                drop_mask=drop_mask(drop, z, z.shape[1]), eps=module.layer_norm_in.eps,
            )  # fmt: skip
        return z

    def attend(self, z: Tensor, mask: Tensor | None, drops: tuple[Any, Any]) -> Tensor:
        """`drops`: of the starting node, whose mask its rows share; of the ending node, columns."""
        for (module, weights), drop, ending in zip(
            self.attentions, drops, (False, True), strict=True
        ):
            z = gated_attention(
                z, weights, module.mha.no_heads, mask=mask, columns=ending, residual=True,
                drop_mask=drop_mask(drop, z, z.shape[1]), drop_columnwise=ending,
                eps=module.layer_norm.eps,
            )  # fmt: skip
        return z

    def finish(self, block: Any, z: Tensor, mask: Tensor | None, masked: bool) -> Tensor:
        return transition(
            z, self.transition, mask=mask if masked else None, residual=True,
            eps=block.pair_transition.layer_norm.eps,
        )  # fmt: skip


class FusedPairStack(Recordable):
    """Forward of the pair half of a block."""

    def forward(
        self: Any, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        flat, parts = four_axes(z), _Parts.of(self)
        transposes = all(m.starting for m, _ in parts.attentions)  # the block, not the ending node
        if options.get("inplace_safe", False) or not transposes or not parts.fit(flat):
            return super().forward(z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        mask, drop = three_axes(pair_mask), self.ps_dropout_row_layer
        flat = parts.attend(parts.multiply(flat, mask, drop), mask, (drop, drop))
        masked = options.get("_mask_trans", True)
        return shaped(parts.finish(self, flat, mask, masked), z)


class FusedTemplateBlock(Recordable):
    """Forward of a block of the template pair stack, all templates at once."""

    def forward(self: Any, z: Tensor, mask: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's; OpenFold's draws its dropout for one template after the other."""
        flat, parts = four_axes(z), _Parts.of(self)
        if options.get("inplace_safe", False) or not parts.fit(flat):
            return super().forward(z, mask, *positional, **options)  # type: ignore[misc,no-any-return]
        pairs = three_axes(mask.expand(z.shape[:-1]))
        drops = self.dropout_row, self.dropout_col
        if self.tri_mul_first:
            flat = parts.attend(parts.multiply(flat, pairs, drops[0]), pairs, drops)
        else:
            flat = parts.multiply(parts.attend(flat, pairs, drops), pairs, drops[0])
        masked = options.get("_mask_trans", True)
        return shaped(parts.finish(self, flat, pairs, masked), z)


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
        return signature_trouble(module, "z", "pair_mask") or FusedPairStack
    if not isinstance(getattr(module, "tri_mul_first", None), bool):
        return "does not say in which order it works"
    return signature_trouble(module, "z|t", "mask") or FusedTemplateBlock


def form_of(module: nn.Module) -> type[Fused] | str | None:
    """The fused form of a part, swapped already or not."""
    return module.mixin if isinstance(module, Fused) else modules.rule(module)

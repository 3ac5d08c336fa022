"""Fused forwards of the pair and Pairformer blocks of Boltz, OpenFold3 and Protenix.

Dropout and residual join the op before them, as in `pair_stacks`; the single track runs its own
modules. A swapped block calls the ops directly with its modules' parameters: forward hooks
on the modules inside do not fire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.gated_attention.op import (
    AttentionWeights,
    gated_attention,
    gated_attention_fits,
)
from evofeed.kernels.ops.swiglu.op import (
    SwigluWeights,
    swiglu_transition,
    swiglu_transition_fits,
)
from evofeed.kernels.ops.triangle_multiplication.op import (
    TriangleWeights,
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.swap.af3_modules import (
    FusedPackedTriangleMultiplication,
    FusedSwigluTransition,
    form_of,
    goes_out,
    packed_triangle_weights,
    swiglu_parts,
    swiglu_weights,
)
from evofeed.kernels.swap.forms import (
    children,
    has,
    passes_turned_bias,
    signature_trouble,
    turns_bias,
)
from evofeed.kernels.swap.modules import FusedTriangleAttention, FusedTriangleMultiplication
from evofeed.kernels.swap.pair_stacks import drop_mask
from evofeed.kernels.swap.parameters import (
    attention_weights,
    four_axes,
    pair_layer,
    shaped,
    three_axes,
    triangle_weights,
)

__all__ = ["rule"]

TRIANGLES = ("tri_mul_out", "tri_mul_in", "tri_att_start", "tri_att_end")


class Dropped(NamedTuple):
    """A shared dropout mask `[B, rows, C]`, or None; whether it is shared along axis J."""

    mask: Tensor | None
    columnwise: bool


class _Parts(NamedTuple):
    """The modules of a block with their weights."""

    multiplications: list[tuple[TriangleWeights, bool, float]]  # outgoing or not, eps
    attentions: list[tuple[AttentionWeights, int, float]]  # starting, ending node: heads, eps
    turned: bool  # the ending node's bias
    transition: tuple[SwigluWeights, float]

    @classmethod
    def of(cls, block: Any, last: Any) -> _Parts:
        products: list[tuple[TriangleWeights, bool, float]] = []
        for m in (block.tri_mul_out, block.tri_mul_in):
            packed = hasattr(m, "p_in")
            weights = packed_triangle_weights(m) if packed else triangle_weights(m)
            eps = (m.norm_in if packed else m.layer_norm_in).eps
            products.append((weights, goes_out(m) if packed else m._outgoing, eps))
        attentions = [
            (attention_weights(m.layer_norm, m.mha, pair_layer(m).weight), m.mha.no_heads,
             m.layer_norm.eps)
            for m in (block.tri_att_start, block.tri_att_end)
        ]  # fmt: skip
        turned = turns_bias(block.tri_att_end)
        return cls(products, attentions, turned, (swiglu_weights(last), swiglu_parts(last)[0].eps))

    def fit(self, z: Tensor) -> bool:
        """Whether the kernels take pairs `[B, I, J, C]` like these."""
        return (
            all(triangle_multiplication_fits(z, w) for w, _, _ in self.multiplications)
            and all(gated_attention_fits(z, w, heads) for w, heads, _ in self.attentions)
            and swiglu_transition_fits(z, self.transition[0])
        )

    def multiply(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for weights, outgoing, eps in self.multiplications:
            drop = next(drops)
            z = triangle_multiplication(
                z, weights, outgoing=outgoing, mask=mask, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z

    def attend(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for ending, (weights, heads, eps) in enumerate(self.attentions):
            drop = next(drops)
            z = gated_attention(
                z, weights, heads, mask=mask, columns=bool(ending),
                turned=bool(ending) and self.turned, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z

    def finish(self, z: Tensor, mask: Tensor | None) -> Tensor:
        weights, eps = self.transition
        return swiglu_transition(z, weights, mask=mask, residual=True, eps=eps)

    def run(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        """The block without a mask of its transition."""
        z = self.multiply(z, mask, drops)
        return self.finish(self.attend(z, mask, drops), None)


# --- Boltz ----------------------------------------------------------------------------------------


def _drawn(block: Any, z: Tensor) -> Iterator[Dropped]:
    """Boltz's masks: one number for a row (column at the ending node), drawn in eval mode too."""
    rate = block.dropout * block.training
    for number in range(4):
        rows = z.shape[2 if number == 3 else 1]
        kept = torch.rand((z.shape[0], rows), dtype=torch.float32, device=z.device) >= rate
        mask = (kept / (1.0 - rate)).to(z.dtype)[..., None].expand(-1, -1, z.shape[-1])
        yield Dropped(mask.contiguous() if rate else None, number < 3)


def _promoted(z: Tensor) -> Tensor:
    """z as Boltz has it under autocast: its masks are float32, and so are the sums."""
    return z.float() if torch.is_autocast_enabled(z.device.type) else z


class FusedBoltzPairBlock(Recordable):
    """Forward of `PairformerNoSeqLayer`."""

    def forward(
        self: Any, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        flat, parts = _promoted(four_axes(z)), _Parts.of(self, self.transition_z)
        if not parts.fit(flat):
            return super().forward(z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        return shaped(parts.run(flat, three_axes(pair_mask), _drawn(self, flat)), z)


class FusedBoltzPairformerBlock(Recordable):
    """Forward of `PairformerLayer`: the pairs fused, then the single track in float32."""

    def forward(
        self: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, *positional: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As the original's."""
        flat, parts = _promoted(four_axes(z)), _Parts.of(self, self.transition_z)
        if not parts.fit(flat):
            return super().forward(s, z, mask, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        z = shaped(parts.run(flat, three_axes(pair_mask), _drawn(self, flat)), z)
        with torch.autocast(s.device.type, enabled=False):
            normed = self.pre_norm_s(s.float())
            s = s.float() + self.attention(s=normed, z=z.float(), mask=mask.float(), k_in=normed)
            s = self.s_post_norm(s + self.transition_s(s))
        return s, z


# --- OpenFold3 ------------------------------------------------------------------------------------


def _rowwise(layer: Any, z: Tensor, order: Sequence[bool]) -> Iterator[Dropped]:
    """Masks that rows share, drawn as the layer does; at the ending node columns share theirs."""
    for ending in order:
        yield Dropped(drop_mask(layer, z, z.shape[1]), ending)


class FusedPairBlock(Recordable):
    """Forward of OpenFold3's `PairBlock` and `TemplatePairBlock`, all templates at once."""

    def forward(self: Any, z: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's; its draws of dropout are for one template after the other.

        What is safe to change in place is not: the result is new, and callers take it.
        """
        flat, parts = four_axes(z), _Parts.of(self, self.pair_transition)
        named = options.get("pair_mask", options.get("mask"))
        given = positional[0] if positional else named
        late = len(positional) > 1  # options by position: left to the original
        if late or given is None or not parts.fit(flat):
            return super().forward(z, *positional, **options)  # type: ignore[misc,no-any-return]
        mask = three_axes(given.expand(z.shape[:-1]))
        layer = self.ps_dropout_row_layer
        if getattr(self, "tri_mul_first", True):
            drops = _rowwise(layer, flat, (False, False, False, True))
            flat = parts.attend(parts.multiply(flat, mask, drops), mask, drops)
        else:
            drops = _rowwise(layer, flat, (False, True, False, False))
            flat = parts.multiply(parts.attend(flat, mask, drops), mask, drops)
        masked = options.get("_mask_trans", True)
        return shaped(parts.finish(flat, mask if masked else None), z)


# --- Protenix -------------------------------------------------------------------------------------


class FusedProtenixBlock(Recordable):
    """Forward of `PairformerBlock`, with or without a single track."""

    def forward(
        self: Any, s: Tensor | None, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> tuple[Tensor | None, Tensor]:
        """As the original's; nothing is changed in place, though `inplace_safe` allows it."""
        flat, parts = four_axes(z), _Parts.of(self, self.pair_transition)
        if positional or not parts.fit(flat):
            return super().forward(s, z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        drops = _rowwise(self.dropout_row, flat, (False, False, False, True))
        mask = None if pair_mask is None else three_axes(pair_mask.expand(z.shape[:-1]))
        z = shaped(parts.run(flat, mask, drops), z)
        if self.c_s > 0:
            s = s + self.attention_pair_bias(a=s, s=None, z=z)
            s = s + self.single_transition(s)
        return s, z


# --- which ----------------------------------------------------------------------------------------


class Form(NamedTuple):
    """A block that a fused forward knows.

    Attributes:
        fused: that forward.
        parts: names of the modules inside, besides the triangles.
        arguments: the first of its forward.
        last: the transition of the pairs.
        turned: whether the block, not its ending node, transposes z.
        flags: attributes that it must have, with their types.
    """

    fused: type[Fused]
    parts: frozenset[str]
    arguments: tuple[str, ...]
    last: str
    turned: bool
    flags: dict[str, type]


FORMS = (
    Form(
        FusedBoltzPairBlock, frozenset({"transition_z"}), ("z", "pair_mask"), "transition_z",
        False, {"dropout": float},
    ),
    Form(
        FusedBoltzPairformerBlock,
        frozenset({"transition_z", "pre_norm_s", "attention", "transition_s", "s_post_norm"}),
        ("s", "z", "mask", "pair_mask"), "transition_z", False, {"dropout": float},
    ),
    Form(
        FusedPairBlock, frozenset({"pair_transition", "ps_dropout_row_layer"}),
        ("z", "pair_mask|mask"), "pair_transition", True, {},
    ),
    Form(
        FusedProtenixBlock, frozenset({"pair_transition", "dropout_row"}),
        ("s", "z", "pair_mask"), "pair_transition", True, {"c_s": int},
    ),
    Form(
        FusedProtenixBlock,
        frozenset(
            {"pair_transition", "dropout_row", "attention_pair_bias", "single_transition"}
        ),
        ("s", "z", "pair_mask"), "pair_transition", True, {"c_s": int},
    ),
)  # fmt: skip


def rule(module: nn.Module) -> type[Fused] | str | None:
    """Which blocks are swapped for these: those of a known form, all of whose parts are fused."""
    if not has(module, *TRIANGLES):
        return None
    found = next((f for f in FORMS if children(module) == {*TRIANGLES, *f.parts}), None)
    if found is None or form_of(getattr(module, found.last)) is not FusedSwigluTransition:
        return None  # AF2's, or its parts by themselves
    return _trouble(module, found) or found.fused


def _trouble(module: Any, form: Form) -> str | None:
    trouble = signature_trouble(module, *form.arguments)
    if trouble:
        return trouble
    for name, kind in form.flags.items():
        if not isinstance(getattr(module, name, None), kind):
            return f"has no {name}"
    if hasattr(module, "tri_mul_first") != (signature_trouble(module, "z", "mask") is None):
        return "does not say in which order it works"  # only template blocks choose
    products = (FusedTriangleMultiplication, FusedPackedTriangleMultiplication)
    for name in TRIANGLES:
        known = products if "mul" in name else (FusedTriangleAttention,)
        if form_of(getattr(module, name)) not in known:
            return f"{name} is of a form that no fused op knows"
    if turns_bias(module.tri_att_end) and not _turns_its_bias(module, form):
        return "may transpose its ending node's bias in a way that no fused op knows"
    starts = (module.tri_att_start.starting, module.tri_att_end.starting)
    if starts != (True, form.turned):
        return "its attentions are not around the nodes that they are named for"
    return None


def _turns_its_bias(block: Any, form: Form) -> bool:
    weight = pair_layer(block.tri_att_end).weight
    z = weight.new_zeros((1, 2, 2, weight.shape[-1]), device="cpu")
    return form.fused is FusedPairBlock and passes_turned_bias(block, z, z[..., 0]) is True

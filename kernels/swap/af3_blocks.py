"""Fused forwards of the pair and Pairformer blocks of Boltz, OpenFold3 and Protenix.

The single track runs its own modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from evofeed.kernels.fused_module import Fused, Recordable
from evofeed.kernels.ops.swiglu.op import swiglu_transition, swiglu_transition_fits
from evofeed.kernels.swap.af3_modules import (
    FusedPackedTriangleMultiplication,
    FusedSwigluTransition,
    form_of,
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
from evofeed.kernels.swap.pair_ops import TRIANGLES, Dropped, PairOps, dropout_trouble
from evofeed.kernels.swap.parameters import four_axes, pair_layer, shaped, three_axes, within


def _taken(block: Any, z: Tensor, last: Any) -> PairOps | None:
    """The block's triangle ops; None if the kernels do not take pairs `[B, I, J, C]` like these."""
    ops = PairOps.of(block)
    return ops if ops.fit(z) and swiglu_transition_fits(z, swiglu_weights(last)) else None


def _finish(last: Any, z: Tensor, mask: Tensor | None) -> Tensor:
    eps = swiglu_parts(last)[0].eps
    return swiglu_transition(z, swiglu_weights(last), mask=mask, residual=True, eps=eps)


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


def _boltz_pairs(block: Any, z: Tensor, pair_mask: Tensor) -> Tensor | None:
    """z behind the pairs' part of a block of Boltz; None where the block runs its own forward."""
    flat = _promoted(four_axes(z))
    ops = _taken(block, flat, block.transition_z)
    if ops is None or not within(pair_mask, z):
        return None
    flat = ops.run(flat, three_axes(pair_mask, z), _drawn(block, flat))
    return shaped(_finish(block.transition_z, flat, None), z)


class FusedBoltzPairBlock(Recordable):
    """Forward of `PairformerNoSeqLayer`."""

    def forward(
        self: Any, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> Tensor:
        """As the original's."""
        made = _boltz_pairs(self, z, pair_mask)
        if made is None:
            return super().forward(z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        return made


class FusedBoltzPairformerBlock(Recordable):
    """Forward of `PairformerLayer`: the pairs fused, then the single track in float32."""

    def forward(
        self: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, *positional: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As the original's."""
        made = _boltz_pairs(self, z, pair_mask)
        if made is None:
            return super().forward(s, z, mask, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        z = made
        with torch.autocast(s.device.type, enabled=False):
            normed = self.pre_norm_s(s.float())
            s = s.float() + self.attention(s=normed, z=z.float(), mask=mask.float(), k_in=normed)
            s = self.s_post_norm(s + self.transition_s(s))
        return s, z


class FusedBoltz1PairformerBlock(Recordable):
    """Forward of Boltz-1's `PairformerLayer`: the single track is not float32 under autocast."""

    def forward(
        self: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, *positional: Any,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """As the original's."""
        made = _boltz_pairs(self, z, pair_mask)
        if made is None:
            return super().forward(s, z, mask, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        z = made
        s = s + self.attention(s, z, mask)
        return s + self.transition_s(s), z


# --- OpenFold3 ------------------------------------------------------------------------------------


class FusedPairBlock(Recordable):
    """Forward of OpenFold3's `PairBlock` and `TemplatePairBlock`, all templates at once."""

    def forward(self: Any, z: Tensor, *positional: Any, **options: Any) -> Tensor:
        """As the original's; its draws of dropout are for one template after the other.

        What is safe to change in place is not: the result is new, and callers take it.
        """
        flat = four_axes(z)
        ops = _taken(self, flat, self.pair_transition)
        named = options.get("pair_mask", options.get("mask"))
        given = positional[0] if positional else named
        late = len(positional) > 1  # options by position: left to the original
        if late or given is None or ops is None or not within(given, z):
            return super().forward(z, *positional, **options)  # type: ignore[misc,no-any-return]
        mask, layer = three_axes(given, z), self.ps_dropout_row_layer
        flat = ops.run_with(flat, mask, layer, layer, getattr(self, "tri_mul_first", True))
        masked = options.get("_mask_trans", True)
        return shaped(_finish(self.pair_transition, flat, mask if masked else None), z)


# --- Protenix -------------------------------------------------------------------------------------


class FusedProtenixBlock(Recordable):
    """Forward of `PairformerBlock`, with or without a single track."""

    def forward(
        self: Any, s: Tensor | None, z: Tensor, pair_mask: Tensor, *positional: Any, **options: Any
    ) -> tuple[Tensor | None, Tensor]:
        """As the original's; nothing is changed in place, though `inplace_safe` allows it."""
        flat = four_axes(z)
        ops = _taken(self, flat, self.pair_transition)
        if positional or ops is None or not within(pair_mask, z):
            return super().forward(s, z, pair_mask, *positional, **options)  # type: ignore[misc,no-any-return]
        mask = three_axes(pair_mask, z)
        flat = ops.run_with(flat, mask, self.dropout_row, self.dropout_row)
        z = shaped(_finish(self.pair_transition, flat, None), z)
        if self.c_s > 0:
            s = s + self.attention_pair_bias(a=s, s=None, z=z)
            s = s + self.single_transition(s)
        return s, z


# --- which ----------------------------------------------------------------------------------------


class BlockForm(NamedTuple):
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
    BlockForm(
        FusedBoltzPairBlock, frozenset({"transition_z"}), ("z", "pair_mask"), "transition_z",
        False, {"dropout": float},
    ),
    BlockForm(
        FusedBoltzPairformerBlock,
        frozenset({"transition_z", "pre_norm_s", "attention", "transition_s", "s_post_norm"}),
        ("s", "z", "mask", "pair_mask"), "transition_z", False, {"dropout": float},
    ),
    BlockForm(
        FusedBoltz1PairformerBlock, frozenset({"transition_z", "attention", "transition_s"}),
        ("s", "z", "mask", "pair_mask"), "transition_z", False, {"dropout": float},
    ),
    BlockForm(
        FusedPairBlock, frozenset({"pair_transition", "ps_dropout_row_layer"}),
        ("z", "pair_mask|mask"), "pair_transition", True, {},
    ),
    BlockForm(
        FusedProtenixBlock, frozenset({"pair_transition", "dropout_row"}),
        ("s", "z", "pair_mask"), "pair_transition", True, {"c_s": int},
    ),
    BlockForm(
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


def _trouble(module: Any, form: BlockForm) -> str | None:
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
        known = products if "mul" in name else FusedTriangleAttention
        if not issubclass(form_of(getattr(module, name)) or Fused, known):
            return f"{name} is of a form that no fused op knows"
    for name in ("ps_dropout_row_layer", "dropout_row"):
        trouble = dropout_trouble(getattr(module, name), -3) if hasattr(module, name) else None
        if trouble:
            return trouble
    if turns_bias(module.tri_att_end) and not _turns_its_bias(module, form):
        return "may transpose its ending node's bias in a way that no fused op knows"
    starts = (module.tri_att_start.starting, module.tri_att_end.starting)
    if starts != (True, form.turned):
        return "its attentions are not around the nodes that they are named for"
    return None


def _turns_its_bias(block: Any, form: BlockForm) -> bool:
    z = torch.zeros(1, 2, 2, pair_layer(block.tri_att_end).weight.shape[-1])
    return form.fused is FusedPairBlock and passes_turned_bias(block, z, z[..., 0]) is True

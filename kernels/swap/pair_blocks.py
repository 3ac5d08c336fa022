"""Blocks around pairs of all projects: triangle products and attention, and a transition.

Dropout and residual join the op before them. A swapped block calls the ops directly with its
modules' parameters: forward hooks on the modules inside do not fire. The single track runs its
own modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.ops.gated_attention.op import gated_attention, gated_attention_fits
from evofeed.kernels.ops.gated_attention.reference import AttentionWeights
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.ops.triangle_multiplication.reference import TriangleWeights
from evofeed.kernels.runtime.one_pass import masks_at_once, once
from evofeed.kernels.swap.forms import Dropout, Form, Part, parts_of, turns_bias
from evofeed.kernels.swap.parameters import attention_weights, four_axes, shaped, three_axes, within
from evofeed.kernels.swap.tokens import attend_as_boltz, attend_tokens
from evofeed.kernels.swap.transitions import transit, transit_gated, updated
from evofeed.kernels.swap.triangles import attend, multiply, pair_layer, triangle_weights


class Dropped(NamedTuple):
    """A shared dropout mask `[B, rows, C]`, or None; whether it is shared along axis J."""

    mask: Tensor | None
    columnwise: bool


def drop_mask(layer: Any, x: Tensor, rows: int) -> Tensor | None:
    """A fresh rowwise mask `[B, rows, C]` of a shared dropout layer; None if it drops nothing.

    It is the one that the layer would draw, unless the pass under way draws many at once.
    """
    if not layer.training or layer.r == 0.0:
        return None
    shape = (x.shape[0], rows, x.shape[-1])
    drawn: list[Tensor] = once(("masks", layer.r, shape, x.dtype, x.device), (), list)
    if not drawn:
        ones = x.new_ones((masks_at_once(), *shape))
        drawn += F.dropout(ones, layer.r, training=True).unbind()
    return drawn.pop()


def _drawn(
    z: Tensor, rows: Any, columns: Any, multiply_first: bool = True
) -> Iterator[Dropped]:  # fmt: skip
    """Layers' dropout: rows share a mask, at the ending node columns."""
    for ending in (False, False, False, True) if multiply_first else (False, True, False, False):
        yield Dropped(drop_mask(columns if ending else rows, z, z.shape[1]), ending)


class PairOps(NamedTuple):
    """The triangle ops of a block with their weights, in the order of their names."""

    multiplications: list[tuple[TriangleWeights, bool, float]]  # outgoing or not, eps
    attentions: list[tuple[AttentionWeights, int, float]]  # starting, ending node: heads, eps
    turned: bool  # the ending node's bias

    @classmethod
    def of(cls, block: Any) -> PairOps:
        """Those of a block whose modules have the names in `TRIANGLES`."""
        products = [
            (triangle_weights(m), getattr(m, "_outgoing", outgoing), parts_of(m)[0].eps)
            for m, outgoing in ((block.tri_mul_out, True), (block.tri_mul_in, False))
        ]
        attentions = [
            (attention_weights(m.layer_norm, m.mha, pair_layer(m).weight), m.mha.no_heads,
             m.layer_norm.eps)
            for m in (block.tri_att_start, block.tri_att_end)
        ]  # fmt: skip
        return cls(products, attentions, turns_bias(block.tri_att_end))

    def fit(self, z: Tensor) -> bool:
        """Whether the kernels take pairs `[B, I, J, C]` like these."""
        return all(triangle_multiplication_fits(z, w) for w, _, _ in self.multiplications) and all(
            gated_attention_fits(z, w, heads) for w, heads, _ in self.attentions
        )

    def run(
        self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped], multiply_first: bool = True
    ) -> Tensor:
        """z after both; `drops` are of the four modules in the order in which they work."""
        for step in (self._multiply, self._attend)[:: 1 if multiply_first else -1]:
            z = step(z, mask, drops)
        return z

    def _multiply(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for weights, outgoing, eps in self.multiplications:
            drop = next(drops)
            z = triangle_multiplication(
                z, weights, outgoing=outgoing, mask=mask, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z

    def _attend(self, z: Tensor, mask: Tensor | None, drops: Iterator[Dropped]) -> Tensor:
        for ending, (weights, heads, eps) in enumerate(self.attentions):
            drop = next(drops)
            z = gated_attention(
                z, weights, heads, mask=mask, columns=bool(ending),
                turned=bool(ending) and self.turned, residual=True, drop_mask=drop.mask,
                drop_columnwise=drop.columnwise, eps=eps,
            )  # fmt: skip
        return z


def pairs_with_layers(
    block: Any, z: Tensor, pair_mask: Tensor | None = None, in_place_too: bool = False,
    late: tuple[Any, ...] = (), inplace_safe: bool = False, _mask_trans: bool = True, **how: Any,
) -> Tensor | None:  # fmt: skip
    """Blocks with layers of dropout of AF2 and OpenFold3, of all templates at once.

    OpenFold's template block draws its dropout for one template after the other. OpenFold3's may
    change z in place (`in_place_too`) and need not: callers take the result.
    """
    if late or pair_mask is None or (inplace_safe and not in_place_too):
        return None
    flat, ops = four_axes(z), PairOps.of(block)
    if not (ops.fit(flat) and within(pair_mask, z)):
        return None
    mask, first = three_axes(pair_mask, z), getattr(block, "tri_mul_first", True)
    rows, columns = (
        (block.dropout_row, block.dropout_col) if hasattr(block, "dropout_col")
        else (block.ps_dropout_row_layer,) * 2
    )  # fmt: skip
    flat = ops.run(flat, mask, _drawn(flat, rows, columns, first), first)
    return shaped(updated(block.pair_transition, flat, mask if _mask_trans else None), z)


def pairs_as_protenix(
    block: Any, s: Tensor | None, z: Tensor, pair_mask: Tensor, late: tuple[Any, ...] = (),
    **how: Any,
) -> tuple[Tensor | None, Tensor] | None:  # fmt: skip
    """Protenix's `PairformerBlock`, with or without a single track.

    Nothing is changed in place, though `inplace_safe` allows it.
    """
    flat, ops = four_axes(z), PairOps.of(block)
    if late or not (ops.fit(flat) and within(pair_mask, z)):
        return None
    drops = _drawn(flat, block.dropout_row, block.dropout_row)
    flat = ops.run(flat, three_axes(pair_mask, z), drops)
    z = shaped(updated(block.pair_transition, flat, None), z)
    if block.c_s > 0:
        s = s + block.attention_pair_bias(a=s, s=None, z=z)
        s = s + block.single_transition(s)
    return s, z


# --- Boltz ----------------------------------------------------------------------------------------


def _drawn_by_boltz(block: Any, z: Tensor) -> Iterator[Dropped]:
    """Boltz's masks: one number for a row (column at the ending node), drawn in eval mode too."""
    rate = block.dropout * block.training
    for number in range(4):
        rows = z.shape[2 if number == 3 else 1]
        kept = torch.rand((z.shape[0], rows), dtype=torch.float32, device=z.device) >= rate
        mask = (kept / (1.0 - rate)).to(z.dtype)[..., None].expand(-1, -1, z.shape[-1])
        yield Dropped(mask.contiguous() if rate else None, number < 3)


def pairs_as_boltz(block: Any, z: Tensor, pair_mask: Tensor, **how: Any) -> Tensor | None:
    """`PairformerNoSeqLayer`, and the pairs' part of others."""
    # as Boltz has z under autocast: its masks are float32, and so are the sums
    flat = four_axes(z).float() if torch.is_autocast_enabled(z.device.type) else four_axes(z)
    ops = PairOps.of(block)
    if not (ops.fit(flat) and within(pair_mask, z)):
        return None
    flat = ops.run(flat, three_axes(pair_mask, z), _drawn_by_boltz(block, flat))
    return shaped(updated(block.transition_z, flat, None), z)


def pairformer_as_boltz(
    block: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, **how: Any
) -> tuple[Tensor, Tensor] | None:
    """`PairformerLayer`: the pairs fused, then the single track in float32."""
    made = pairs_as_boltz(block, z, pair_mask)
    if made is None:
        return None
    with torch.autocast(s.device.type, enabled=False):
        normed = block.pre_norm_s(s.float())
        s = s.float() + block.attention(s=normed, z=made.float(), mask=mask.float(), k_in=normed)
        s = block.s_post_norm(s + block.transition_s(s))
    return s, made


def pairformer_as_boltz_1(
    block: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, **how: Any
) -> tuple[Tensor, Tensor] | None:
    """Boltz-1's `PairformerLayer`: the single track is not float32 under autocast."""
    made = pairs_as_boltz(block, z, pair_mask)
    if made is None:
        return None
    s = s + block.attention(s, made, mask)
    return s + block.transition_s(s), made


# --- which ----------------------------------------------------------------------------------------

TRIANGLES: dict[str, Part] = {
    "tri_mul_out": multiply, "tri_mul_in": multiply, "tri_att_start": attend, "tri_att_end": attend,
}  # fmt: skip
STARTS, TURNED_BY_BLOCK = {"tri_att_start.starting": True}, {"tri_att_end.starting": True}


def _may_turn(block: Any) -> str | None:
    if turns_bias(block.tri_att_end):
        return "may transpose its ending node's bias in a way that no fused op knows"
    return None


_ROW_LAYER: dict[str, Part] = {**TRIANGLES, "ps_dropout_row_layer": Dropout(-3)}
Form(  # AF2's
    pairs_with_layers, {**_ROW_LAYER, "pair_transition": transit}, ("z", "pair_mask"),
    ("NNz", "NN"), flags=STARTS | TURNED_BY_BLOCK, untried=_may_turn,
)  # fmt: skip
Form(
    pairs_with_layers,
    {**TRIANGLES, "dropout_row": Dropout(-3), "dropout_col": Dropout(-2),
     "pair_transition": transit},
    ("z|t", "pair_mask|mask"), ("NNz", "NN"), flags={"tri_mul_first": bool}, untried=_may_turn,
)  # fmt: skip
for _mask, _flags in (("pair_mask", {}), ("mask", {"tri_mul_first": bool})):  # OpenFold3's
    Form(
        pairs_with_layers, {**_ROW_LAYER, "pair_transition": transit_gated},
        ("z", f"pair_mask|{_mask}"), ("NNz", "NN"), flags=STARTS | TURNED_BY_BLOCK | _flags,
        options={"in_place_too": True}, untried=_may_turn,
    )  # fmt: skip
_PROTENIX: dict[str, Part] = {
    **TRIANGLES,
    "pair_transition": transit_gated,
    "dropout_row": Dropout(-3),
}
_SINGLE: dict[str, Part] = {"attention_pair_bias": attend_tokens, "single_transition": nn.Module}
for _more, _of_s in (({}, ""), (_SINGLE, "Na")):
    Form(
        pairs_as_protenix, {**_PROTENIX, **_more}, ("s", "z", "pair_mask"), (_of_s, "NNz", "NN"),
        flags={"c_s": int, **STARTS, **TURNED_BY_BLOCK}, untried=_may_turn,
    )  # fmt: skip
_BOLTZ: dict[str, Part] = {**TRIANGLES, "transition_z": transit_gated}
_FLAGS = {"dropout": float, **STARTS, "tri_att_end.starting": False}
Form(pairs_as_boltz, _BOLTZ, ("z", "pair_mask"), ("NNz", "NN"), flags=_FLAGS, untried=_may_turn)
Form(
    pairformer_as_boltz,
    {**_BOLTZ, "pre_norm_s": nn.Module, "attention": attend_as_boltz, "transition_s": nn.Module,
     "s_post_norm": nn.Module},
    ("s", "z", "mask", "pair_mask"), ("Na", "NNz", "N", "NN"), flags=_FLAGS, untried=_may_turn,
)  # fmt: skip
Form(
    pairformer_as_boltz_1, {**_BOLTZ, "attention": nn.Module, "transition_s": nn.Module},
    ("s", "z", "mask", "pair_mask"), ("Na", "NNz", "N", "NN"), flags=_FLAGS,
    widths={"a": "attention.proj_q"}, untried=_may_turn,
)  # fmt: skip

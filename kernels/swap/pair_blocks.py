"""Blocks around pairs of all projects: triangle products and attention, and a transition.

Dropout and residual join the op before them. A swapped block calls the ops directly with its
modules' parameters: forward hooks on the modules inside do not fire. The single track runs its
own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.kernels.ops.gated_attention.op import gated_attention, gated_attention_fits
from evofeed.kernels.ops.triangle_multiplication.op import (
    triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.runtime.one_pass import computed_once, draw_ahead
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

    def draw(number: int) -> Sequence[Tensor]:
        sizes = (number, *shape)
        ones = computed_once(("ones", sizes, x.dtype, x.device), (), lambda: x.new_ones(sizes))
        return F.dropout(ones, layer.r, training=True).unbind()

    return draw_ahead((layer.r, shape, x.dtype, x.device), draw)


def _drawn(
    z: Tensor, rows: Any, columns: Any, multiply_first: bool = True
) -> Iterator[Dropped]:  # fmt: skip
    """Layers' dropout: rows share a mask, at the ending node columns."""
    for ending in (False, False, False, True) if multiply_first else (False, True, False, False):
        yield Dropped(drop_mask(columns if ending else rows, z, z.shape[1]), ending)


def _through_triangles(
    block: Any, z: Tensor, pair_mask: Tensor, drawn: Callable[[Tensor], Iterator[Dropped]],
    multiply_first: bool = True,
) -> Tensor | None:  # fmt: skip
    """z `[B, I, J, C]` behind the triangle ops of a block whose modules are named as `TRIANGLES`.

    None where no kernel takes such pairs. `drawn` gives the dropout of the four modules in the
    order in which they work.
    """
    flat = four_axes(z)
    steps: list[Callable[..., Tensor]] = []
    for module, outgoing in ((block.tri_mul_out, True), (block.tri_mul_in, False)):
        weights = triangle_weights(module)
        if not triangle_multiplication_fits(flat, weights):
            return None
        steps.append(partial(
            triangle_multiplication, weights=weights, eps=parts_of(module)[0].eps,
            outgoing=getattr(module, "_outgoing", outgoing),
        ))  # fmt: skip
    for module, ending in ((block.tri_att_start, False), (block.tri_att_end, True)):
        norm, heads = module.layer_norm, module.mha.no_heads
        projections = attention_weights(norm, module.mha, pair_layer(module).weight)
        if not gated_attention_fits(flat, projections, heads):
            return None
        steps.append(partial(
            gated_attention, weights=projections, heads=heads, columns=ending,
            turned=ending and turns_bias(module), eps=norm.eps,
        ))  # fmt: skip
    if not within(pair_mask, z):
        return None
    mask = three_axes(pair_mask, z)
    steps = steps if multiply_first else [*steps[2:], *steps[:2]]
    for step, drop in zip(steps, drawn(flat), strict=True):
        flat = step(
            flat, mask=mask, residual=True, drop_mask=drop.mask, drop_columnwise=drop.columnwise
        )
    return flat


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
    first = getattr(block, "tri_mul_first", True)
    rows, columns = (
        (block.dropout_row, block.dropout_col) if hasattr(block, "dropout_col")
        else (block.ps_dropout_row_layer,) * 2
    )  # fmt: skip
    flat = _through_triangles(block, z, pair_mask, lambda z: _drawn(z, rows, columns, first), first)
    if flat is None:
        return None
    mask = three_axes(pair_mask, z) if _mask_trans else None
    return shaped(updated(block.pair_transition, flat, mask), z)


def pairs_as_protenix(
    block: Any, s: Tensor | None, z: Tensor, pair_mask: Tensor, late: tuple[Any, ...] = (),
    **how: Any,
) -> tuple[Tensor | None, Tensor] | None:  # fmt: skip
    """Protenix's `PairformerBlock`, with or without a single track.

    Nothing is changed in place, though `inplace_safe` allows it.
    """
    drop = block.dropout_row
    flat = None if late else _through_triangles(
        block, z, pair_mask, lambda z: _drawn(z, drop, drop)
    )  # fmt: skip
    if flat is None:
        return None
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
    z = z.float() if torch.is_autocast_enabled(z.device.type) else z
    flat = _through_triangles(block, z, pair_mask, partial(_drawn_by_boltz, block))
    return None if flat is None else shaped(updated(block.transition_z, flat, None), z)


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

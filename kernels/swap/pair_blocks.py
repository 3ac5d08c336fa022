"""Pair blocks of all projects: triangle multiplication and attention, and a transition.

Dropout and residual are fused into the op before them. A swapped block calls the ops directly with
its modules' parameters: forward hooks on the modules inside do not fire. The single track runs its
modules.
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
from evofeed.kernels.swap.forms import Dropout, Form, Part, parts_of, transposes_bias
from evofeed.kernels.swap.parameters import (
    attention_weights,
    four_axes,
    mask_fits,
    shaped,
    three_axes,
)  # fmt: skip
from evofeed.kernels.swap.tokens import run_boltz_attention, run_token_attention
from evofeed.kernels.swap.transitions import add_transition, run_swiglu, run_transition
from evofeed.kernels.swap.triangles import attend, multiply, pair_layer, triangle_weights


class SharedDropout(NamedTuple):
    """A shared dropout mask `[B, rows, C]`, or None; whether it is shared along axis J."""

    mask: Tensor | None
    columnwise: bool


def drop_mask(layer: Any, x: Tensor, rows: int) -> Tensor | None:
    """A new rowwise mask `[B, rows, C]` of a shared dropout layer; None if it drops nothing.

    The mask that the layer would draw, unless an active `OnePass` draws many masks at once.
    """
    if not layer.training or layer.r == 0.0:
        return None
    shape = (x.shape[0], rows, x.shape[-1])

    def draw(count: int) -> Sequence[Tensor]:
        sizes = (count, *shape)
        ones = computed_once(("ones", sizes, x.dtype, x.device), (), lambda: x.new_ones(sizes))
        return F.dropout(ones, layer.r, training=True).unbind()

    return draw_ahead((layer.r, shape, x.dtype, x.device), draw)


def _layer_dropout(
    z: Tensor, rows: Any, columns: Any, multiply_first: bool = True
) -> Iterator[SharedDropout]:
    """Masks of dropout layers: shared by rows, at the ending node by columns."""
    for ending in (False, False, False, True) if multiply_first else (False, True, False, False):
        yield SharedDropout(drop_mask(columns if ending else rows, z, z.shape[1]), ending)


def _run_triangles(
    block: Any, z: Tensor, pair_mask: Tensor, dropout: Callable[[Tensor], Iterator[SharedDropout]],
    multiply_first: bool = True,
) -> Tensor | None:  # fmt: skip
    """z `[B, I, J, C]` after the triangle ops of a block with the modules of `TRIANGLES`.

    None if the kernels do not support such pairs. `dropout` yields the masks of the four modules
    in the order in which they run.
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
            turned=ending and transposes_bias(module), eps=norm.eps,
        ))  # fmt: skip
    if not mask_fits(pair_mask, z):
        return None
    mask = three_axes(pair_mask, z)
    steps = steps if multiply_first else [*steps[2:], *steps[:2]]
    for step, drop in zip(steps, dropout(flat), strict=True):
        flat = step(
            flat, mask=mask, residual=True, drop_mask=drop.mask, drop_columnwise=drop.columnwise
        )
    return flat


def run_pair_stack(
    block: Any, z: Tensor, pair_mask: Tensor | None = None, in_place_too: bool = False,
    extra_args: tuple[Any, ...] = (), inplace_safe: bool = False, _mask_trans: bool = True,
    **options: Any,
) -> Tensor | None:  # fmt: skip
    """Blocks of AF2 and OpenFold3 with dropout layers, for all templates at once.

    OpenFold's template block draws its dropout template by template. OpenFold3's may change z in
    place (`in_place_too`) but need not: callers use the result.
    """
    if extra_args or pair_mask is None or (inplace_safe and not in_place_too):
        return None
    first = getattr(block, "tri_mul_first", True)
    rows = block.dropout_row if hasattr(block, "dropout_row") else block.ps_dropout_row_layer
    columns = getattr(block, "dropout_col", rows)
    dropout = partial(_layer_dropout, rows=rows, columns=columns, multiply_first=first)
    flat = _run_triangles(block, z, pair_mask, dropout, first)
    if flat is None:
        return None
    mask = three_axes(pair_mask, z) if _mask_trans else None
    return shaped(add_transition(block.pair_transition, flat, mask), z)


def run_protenix_block(
    block: Any, s: Tensor | None, z: Tensor, pair_mask: Tensor, extra_args: tuple[Any, ...] = (),
    **options: Any,
) -> tuple[Tensor | None, Tensor] | None:  # fmt: skip
    """Protenix's `PairformerBlock`, with or without a single track.

    Changes nothing in place, although `inplace_safe` allows it.
    """
    if extra_args:
        return None
    drop = partial(_layer_dropout, rows=block.dropout_row, columns=block.dropout_row)
    flat = _run_triangles(block, z, pair_mask, drop)
    if flat is None:
        return None
    z = shaped(add_transition(block.pair_transition, flat, None), z)
    if block.c_s > 0:
        s = s + block.attention_pair_bias(a=s, s=None, z=z)
        s = s + block.single_transition(s)
    return s, z


# --- Boltz ----------------------------------------------------------------------------------------


def _boltz_dropout(block: Any, z: Tensor) -> Iterator[SharedDropout]:
    """Boltz's masks: one value per row (column at the ending node), drawn in eval mode too."""
    rate = block.dropout * block.training
    for number in range(4):
        rows = z.shape[2 if number == 3 else 1]
        keep = torch.rand((z.shape[0], rows), dtype=torch.float32, device=z.device) >= rate
        mask = (keep / (1.0 - rate)).to(z.dtype)[..., None].expand(-1, -1, z.shape[-1])
        yield SharedDropout(mask.contiguous() if rate else None, number < 3)


def run_boltz_pairs(block: Any, z: Tensor, pair_mask: Tensor, **options: Any) -> Tensor | None:
    """`PairformerNoSeqLayer`, and the pair part of other layers."""
    # As in Boltz under autocast: its masks are float32, and so are the sums.
    z = z.float() if torch.is_autocast_enabled(z.device.type) else z
    flat = _run_triangles(block, z, pair_mask, partial(_boltz_dropout, block))
    return None if flat is None else shaped(add_transition(block.transition_z, flat, None), z)


def run_boltz_pairformer(
    block: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor] | None:
    """`PairformerLayer`: the pairs fused, then the single track in float32."""
    pairs = run_boltz_pairs(block, z, pair_mask)
    if pairs is None:
        return None
    with torch.autocast(s.device.type, enabled=False):
        normed = block.pre_norm_s(s.float())
        s = s.float() + block.attention(s=normed, z=pairs.float(), mask=mask.float(), k_in=normed)
        s = block.s_post_norm(s + block.transition_s(s))
    return s, pairs


def run_boltz_1_pairformer(
    block: Any, s: Tensor, z: Tensor, mask: Tensor, pair_mask: Tensor, **options: Any
) -> tuple[Tensor, Tensor] | None:
    """Boltz-1's `PairformerLayer`: the single track is not float32 under autocast."""
    pairs = run_boltz_pairs(block, z, pair_mask)
    if pairs is None:
        return None
    s = s + block.attention(s, pairs, mask)
    return s + block.transition_s(s), pairs


# --- which ----------------------------------------------------------------------------------------

TRIANGLES: dict[str, Part] = {
    "tri_mul_out": multiply, "tri_mul_in": multiply, "tri_att_start": attend, "tri_att_end": attend,
}  # fmt: skip
STARTS, BLOCK_TRANSPOSES = {"tri_att_start.starting": True}, {"tri_att_end.starting": True}


def _untried(block: Any) -> str | None:
    if transposes_bias(block.tri_att_end):
        return "may transpose its ending node's bias in a way that no fused op supports"
    return None


_ROW_LAYER: dict[str, Part] = {**TRIANGLES, "ps_dropout_row_layer": Dropout(-3)}
Form(  # AF2's
    run_pair_stack, {**_ROW_LAYER, "pair_transition": run_transition}, ("z", "pair_mask"),
    ("NNz", "NN"), flags=STARTS | BLOCK_TRANSPOSES, untried=_untried,
)  # fmt: skip
Form(
    run_pair_stack,
    {**TRIANGLES, "dropout_row": Dropout(-3), "dropout_col": Dropout(-2),
     "pair_transition": run_transition},
    ("z|t", "pair_mask|mask"), ("NNz", "NN"), flags={"tri_mul_first": bool}, untried=_untried,
)  # fmt: skip
for _mask, _flags in (("pair_mask", {}), ("mask", {"tri_mul_first": bool})):  # OpenFold3's
    Form(
        run_pair_stack, {**_ROW_LAYER, "pair_transition": run_swiglu},
        ("z", f"pair_mask|{_mask}"), ("NNz", "NN"), flags=STARTS | BLOCK_TRANSPOSES | _flags,
        options={"in_place_too": True}, untried=_untried,
    )  # fmt: skip
_PROTENIX = {**TRIANGLES, "pair_transition": run_swiglu, "dropout_row": Dropout(-3)}
_SINGLE: dict[str, Part] = {
    "attention_pair_bias": run_token_attention, "single_transition": nn.Module,
}  # fmt: skip
for _more, _of_s in (({}, ""), (_SINGLE, "Na")):
    Form(
        run_protenix_block, {**_PROTENIX, **_more}, ("s", "z", "pair_mask"), (_of_s, "NNz", "NN"),
        flags={"c_s": int, **STARTS, **BLOCK_TRANSPOSES}, untried=_untried,
    )  # fmt: skip
_BOLTZ: dict[str, Part] = {**TRIANGLES, "transition_z": run_swiglu}
_FLAGS = {"dropout": float, **STARTS, "tri_att_end.starting": False}
Form(run_boltz_pairs, _BOLTZ, ("z", "pair_mask"), ("NNz", "NN"), flags=_FLAGS, untried=_untried)
Form(
    run_boltz_pairformer,
    {**_BOLTZ, "pre_norm_s": nn.Module, "attention": run_boltz_attention, "transition_s": nn.Module,
     "s_post_norm": nn.Module},
    ("s", "z", "mask", "pair_mask"), ("Na", "NNz", "N", "NN"), flags=_FLAGS, untried=_untried,
)  # fmt: skip
Form(
    run_boltz_1_pairformer, {**_BOLTZ, "attention": nn.Module, "transition_s": nn.Module},
    ("s", "z", "mask", "pair_mask"), ("Na", "NNz", "N", "NN"), flags=_FLAGS,
    widths={"a": "attention.proj_q"}, untried=_untried,
)  # fmt: skip

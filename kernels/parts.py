"""Fused operators with the parameters of a swapped module, for who runs a block part by part.

A block whose rows are somewhere else too cannot call its modules: between their halves lies an
exchange, which the caller makes. Each function here gives None where the module is not
swapped or the input does not fit; the caller then computes with the module's own layers.
All of them add the input.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.ops.gated_attention.op import (
    gated_attention,
    gated_attention_fits,
    gated_attention_of_pairs,
)
from evofeed.kernels.ops.gated_attention.plan import OtherPairs
from evofeed.kernels.ops.outer_product_mean.op import (
    Others,
    outer_product_mean_fits,
    outer_product_mean_of_columns,
)
from evofeed.kernels.ops.pair_bias.op import pair_bias_fits, pair_bias_with_input
from evofeed.kernels.ops.transition.op import transition, transition_fits
from evofeed.kernels.ops.triangle_multiplication.op import (
    Product,
    triangle_multiplication_fits,
    triangle_multiplication_of_rows,
)
from evofeed.kernels.ops.triangle_multiplication.projections import triangle_projections
from evofeed.kernels.swap.modules import global_attention
from evofeed.kernels.swap.pair_ops import drop_mask
from evofeed.kernels.swap.parameters import (
    attention_weights,
    four_axes,
    outer_weights,
    pair_layer,
    shaped,
    three_axes,
    transition_weights,
    triangle_weights,
)

__all__ = [
    "attention_of",
    "drop_mask",
    "global_attention_of",
    "outer_product_mean_of",
    "pair_bias_of",
    "transition_of",
    "triangle_attention_of",
    "triangle_multiplication_of",
    "triangle_projections_of",
]


def _swapped(module: Any) -> bool:
    return isinstance(module, Fused)


def pair_bias_of(module: Any, z: Tensor) -> tuple[Tensor, Tensor] | None:
    """The bias `[*, H, I, J]` of an attention from any rows of the pairs `[*, I, J, C]`.

    It is multiplied by the root of the head width, which saves a rounding. Also z for later
    ops (see `pair_bias_with_input`).
    """
    if not _swapped(module):
        return None
    triangle = hasattr(module, "starting")
    norm = module.layer_norm if triangle else module.layer_norm_z
    weight = (pair_layer(module) if triangle else module.linear_z).weight
    flat = four_axes(z)
    if not pair_bias_fits(flat, weight):
        return None
    bias, pairs = pair_bias_with_input(
        flat, norm.weight, norm.bias, weight, norm.eps, module.mha.c_hidden**0.5
    )
    return bias.view(*z.shape[:-3], *bias.shape[1:]), shaped(pairs, z)


def attention_of(
    module: Any, x: Tensor, bias: Tensor | None, mask: Tensor, *, columns: bool = False,
    bias_scale: float = 1.0, drop_mask: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """x plus the update of a row, column or triangle attention, whose pair bias is given.

    Args:
        module: the attention, with its norm.
        x: `[*, R, N, C]`, any part of the rows (of the columns with `columns`).
        bias: `[*, H, K, K]` of all K positions that attend to each other, or None.
        mask: `[*, R, N]`.
        columns: positions attend along R.
        bias_scale: factor that `bias` already has.
        drop_mask: `[*, N, C]`, or None.
    """
    if not _swapped(module) or not x.numel():
        return None
    norm = module.layer_norm if hasattr(module, "starting") else module.layer_norm_m
    weights, heads, flat = attention_weights(norm, module.mha), module.mha.no_heads, four_axes(x)
    if not gated_attention_fits(flat, weights, heads):
        return None
    found = gated_attention(
        flat, weights, heads, bias=None if bias is None else four_axes(bias),
        mask=three_axes(mask), columns=columns, residual=True,
        drop_mask=three_axes(drop_mask), bias_scale=bias_scale, eps=norm.eps,
    )  # fmt: skip
    return shaped(found, x)


def triangle_attention_of(
    module: Any, z: Tensor, mask: Tensor, others: OtherPairs, *, columns: bool = False,
    drop_mask: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """z plus its triangle attention.

    Args:
        module: the attention, with its norm.
        z: `[*, I, N, C]`, some rows of the pairs; with `columns` `[*, N, I, C]`.
        mask: of the same pairs.
        others: what knows the other pairs.
        columns: pairs attend along the first residue axis, and dropout is shared along the second.
        drop_mask: `[*, N, C]`, or None.
    """
    if not _swapped(module):
        return None
    norm, heads, flat, pairs = (
        module.layer_norm,
        module.mha.no_heads,
        four_axes(z),
        three_axes(mask),
    )
    weights = attention_weights(norm, module.mha, pair_layer(module).weight)
    if not gated_attention_fits(flat, weights, heads):
        return None
    assert pairs is not None
    found = gated_attention_of_pairs(
        flat, weights, heads, others, mask=pairs, columns=columns,
        drop_mask=three_axes(drop_mask), drop_columnwise=columns, eps=norm.eps,
    )  # fmt: skip
    return shaped(found, z)


def global_attention_of(module: Any, m: Tensor, mask: Tensor) -> Tensor | None:
    """m `[*, S, R, C]`, any columns of the MSA, plus their global attention; mask `[*, S, R]`."""
    if not _swapped(module) or not m.numel():
        return None
    return global_attention(module, m, mask, residual=True)


def transition_of(module: Any, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """x `[..., C]` plus its transition; mask `[...]` of the update."""
    if not _swapped(module) or not x.numel():
        return None
    weights = transition_weights(module)
    if not transition_fits(x, weights):
        return None
    return transition(x, weights, mask=mask, residual=True, eps=module.layer_norm.eps)


def triangle_multiplication_of(
    module: Any, z: Tensor, mask: Tensor, product: Product, *, drop_mask: Tensor | None
) -> Tensor | None:
    """z `[*, I, R, C]`, any rows of the pairs, plus their triangle multiplication.

    Args:
        module: the multiplication.
        z: the rows.
        mask: `[*, I, R]`.
        product: what knows the other rows.
        drop_mask: `[*, R, C]`, or None.
    """
    if not _swapped(module):
        return None
    weights, flat, pairs = triangle_weights(module), four_axes(z), three_axes(mask)
    if not triangle_multiplication_fits(flat, weights, rows=True):
        return None
    assert pairs is not None
    found = triangle_multiplication_of_rows(
        flat, weights, product, outgoing=module._outgoing, mask=pairs,
        drop_mask=three_axes(drop_mask), eps=module.layer_norm_in.eps,
    )  # fmt: skip
    return shaped(found, z)


def triangle_projections_of(module: Any, z: Tensor, mask: Tensor) -> Tensor | None:
    """Both sides `[2, E, *, I, J]` of the product of any part of the pairs; without a gradient.

    Args:
        module: the multiplication.
        z: `[*, I, J, C]`.
        mask: `[*, I, J]`.
    """
    if not _swapped(module):
        return None
    weights, flat, pairs = triangle_weights(module), four_axes(z), three_axes(mask)
    if not triangle_multiplication_fits(flat, weights, rows=True):
        return None
    assert pairs is not None
    eps = module.layer_norm_in.eps
    return triangle_projections(flat, weights, mask=pairs, eps=eps)


def outer_product_mean_of(
    module: Any, m: Tensor, mask: Tensor, z: Tensor, others: Others
) -> tuple[Tensor, Tensor] | None:
    """Rows of the pairs z `[*, L, R, N]` plus the outer product mean of the same columns of m.

    Also m for later ops (see `outer_product_mean_of_columns`).

    Args:
        module: the outer product mean.
        m: `[*, S, I, C]`, any columns of the MSA.
        mask: `[*, S, I]`.
        z: the rows of the pairs.
        others: what knows the other columns.
    """
    if not _swapped(module) or not m.numel():
        return None
    weights, flat, rows = outer_weights(module), four_axes(m), three_axes(mask)
    if not outer_product_mean_fits(flat, weights):
        return None
    assert rows is not None
    found, columns = outer_product_mean_of_columns(
        flat, weights, rows, four_axes(z), others, eps=module.eps, norm_eps=module.layer_norm.eps
    )
    return shaped(found, z), shaped(columns, m)

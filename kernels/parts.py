"""Fused operators with the parameters of a swapped module, for blocks split over several ranks.

A block whose rows are spread over ranks cannot call its modules: the caller exchanges data between
their halves. Each function returns None if the module is not swapped or the input is not
supported; the caller then computes with the module's own layers. All of them add the input.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.ops.gated_attention.op import OtherPairs, fused_gated_attention
from evofeed.kernels.ops.outer_product_mean.op import Others, outer_product_mean_fits
from evofeed.kernels.ops.pair_bias.op import pair_bias_fits, pair_bias_with_input
from evofeed.kernels.ops.triangle_multiplication.launch import triangle_projections
from evofeed.kernels.ops.triangle_multiplication.op import (
    Product,
    fused_triangle_multiplication,
    triangle_multiplication_fits,
)
from evofeed.kernels.swap.msa import add_outer_product, outer_product_weights, run_global_attention
from evofeed.kernels.swap.pair_blocks import drop_mask
from evofeed.kernels.swap.parameters import attention_weights, four_axes, shaped, three_axes
from evofeed.kernels.swap.transitions import run_transition
from evofeed.kernels.swap.triangles import pair_layer, triangle_weights

__all__ = [
    "attention_of",
    "drop_mask",
    "global_attention_of",
    "outer_product_mean_of",
    "pair_bias_of",
    "transition_of",
    "triangle_multiplication_of",
    "triangle_projections_of",
]


def _supports(module: Any, x: Tensor) -> bool:
    """True if the module is swapped and the input is not empty."""
    return isinstance(module, Fused) and x.numel() > 0


def pair_bias_of(module: Any, z: Tensor) -> tuple[Tensor, Tensor] | None:
    """The bias `[*, H, I, J]` of an attention from any rows of the pairs `[*, I, J, C]`.

    It is multiplied by the square root of the head width, which saves a rounding. Also returns z
    for later ops (see `pair_bias_with_input`).
    """
    if not _supports(module, z):
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
    module: Any, x: Tensor, bias: Tensor | None, mask: Tensor, *, others: OtherPairs | None = None,
    columns: bool = False, bias_scale: float = 1.0, drop_mask: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """x plus the update of a row, column or triangle attention, with a given or computed pair bias.

    Args:
        module: the attention, with its norm.
        x: `[*, R, N, C]`, any part of the rows (of the columns with `columns`).
        bias: `[*, H, K, K]` of all K positions that attend to each other, or None.
        mask: `[*, R, N]`.
        others: access to the pairs of other ranks, to compute the bias from all; None: `bias`.
        columns: positions attend along R, and dropout is shared along N.
        bias_scale: factor that `bias` already includes.
        drop_mask: `[*, N, C]`, with `columns` `[*, R, C]`, or None.
    """
    if not _supports(module, x):
        return None
    norm = module.layer_norm if hasattr(module, "starting") else module.layer_norm_m
    weights = attention_weights(
        norm, module.mha, None if others is None else pair_layer(module).weight
    )
    update = fused_gated_attention(
        four_axes(x), weights, module.mha.no_heads, bias=None if bias is None else four_axes(bias),
        mask=three_axes(mask), columns=columns, turned=False, residual=True,
        drop_mask=three_axes(drop_mask), drop_columnwise=columns, bias_scale=bias_scale,
        eps=norm.eps, others=others,
    )  # fmt: skip
    return None if update is None else shaped(update, x)


def global_attention_of(module: Any, m: Tensor, mask: Tensor) -> Tensor | None:
    """m `[*, S, R, C]`, any columns of the MSA, plus their global attention; mask `[*, S, R]`."""
    return run_global_attention(module, m, mask, residual=True) if _supports(module, m) else None


def transition_of(module: Any, x: Tensor, mask: Tensor | None) -> Tensor | None:
    """x `[..., C]` plus its transition; mask `[...]` of the update."""
    return run_transition(module, x, mask, residual=True) if _supports(module, x) else None


def triangle_multiplication_of(
    module: Any, z: Tensor, mask: Tensor, product: Product, *, drop_mask: Tensor | None
) -> Tensor | None:
    """z `[*, I, R, C]`, any rows of the pairs, plus their triangle multiplication.

    Args:
        module: the multiplication.
        z: the rows.
        mask: `[*, I, R]`.
        product: access to the other rows.
        drop_mask: `[*, R, C]`, or None.
    """
    if not _supports(module, z):
        return None
    update = fused_triangle_multiplication(
        four_axes(z), triangle_weights(module), outgoing=module._outgoing, mask=three_axes(mask),
        residual=True, drop_mask=three_axes(drop_mask), drop_columnwise=False,
        eps=module.layer_norm_in.eps, others=product,
    )  # fmt: skip
    return None if update is None else shaped(update, z)


def triangle_projections_of(module: Any, z: Tensor, mask: Tensor) -> Tensor | None:
    """Both factors `[2, E, *, I, J]` of the triangle product of any pairs, without a gradient.

    Args:
        module: the multiplication.
        z: `[*, I, J, C]`.
        mask: `[*, I, J]`.
    """
    if not _supports(module, z):
        return None
    weights, flat, pairs = triangle_weights(module), four_axes(z), three_axes(mask)
    if pairs is None or not triangle_multiplication_fits(flat, weights, rows=True):
        return None
    eps = module.layer_norm_in.eps
    return triangle_projections(flat, weights, mask=pairs, eps=eps)


def outer_product_mean_of(
    module: Any, m: Tensor, mask: Tensor, z: Tensor, others: Others
) -> tuple[Tensor, Tensor] | None:
    """Rows of the pairs z `[*, L, R, N]` plus the outer product mean of the same columns of m.

    Also returns m for later ops (see `outer_product_mean_with_input`).

    Args:
        module: the outer product mean.
        m: `[*, S, I, C]`, any columns of the MSA.
        mask: `[*, S, I]`.
        z: the rows of the pairs.
        others: access to the other columns.
    """
    if not _supports(module, m):
        return None
    if not outer_product_mean_fits(four_axes(m), outer_product_weights(module)):
        return None
    return add_outer_product(module, m, z, mask, others)

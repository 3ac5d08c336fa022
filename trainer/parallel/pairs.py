"""The pair half of a block on parts of the pairs: rows i, and for a while columns j.

Letters: N residues, n of them here, C channels, H heads, E hidden channels.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from evofeed.kernels import (
    attention_of,
    pair_bias_of,
    transition_of,
    triangle_multiplication_of,
)
from evofeed.trainer.model.primitives import mask_bias
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchange, gather
from evofeed.trainer.parallel.triangle_product import product_of

__all__ = [
    "added",
    "all_biases",
    "attend",
    "drop_mask",
    "pair_stack",
    "template_block",
    "transition",
]


def pair_stack(
    stack: Any, z: Tensor, pair_mask: Tensor, mask_trans: bool, axis: Axis
) -> Tensor:  # fmt: skip
    """`PairStack` on rows `[*, n, N, C]`; the mask is whole."""
    drop = stack.ps_dropout_row_layer
    for module in (stack.tri_mul_out, stack.tri_mul_in):
        z = _multiply(module, z, pair_mask, drop_mask(drop, z), axis)
    z = _attend_start(stack.tri_att_start, z, pair_mask, drop_mask(drop, z), axis)
    z = _attend_end(stack.tri_att_end, z, pair_mask, drop_mask(drop, z), axis)
    return transition(stack.pair_transition, z, axis.part(pair_mask, -2) if mask_trans else None)


def template_block(
    block: Any, t: Tensor, mask: Tensor, mask_trans: bool, axis: Axis
) -> Tensor:  # fmt: skip
    """`TemplatePairStackBlock` on rows `[*, T, n, N, C]`; the mask is whole, for all templates."""

    def attend(t: Tensor) -> Tensor:
        t = _attend_start(block.tri_att_start, t, mask, drop_mask(block.dropout_row, t), axis)
        return _attend_end(block.tri_att_end, t, mask, drop_mask(block.dropout_col, t), axis)

    def multiply(t: Tensor) -> Tensor:
        for module in (block.tri_mul_out, block.tri_mul_in):
            t = _multiply(module, t, mask, drop_mask(block.dropout_row, t), axis)
        return t

    t = attend(multiply(t)) if block.tri_mul_first else multiply(attend(t))
    return transition(block.pair_transition, t, axis.part(mask, -2) if mask_trans else None)


def drop_mask(layer: Any, x: Tensor) -> Tensor | None:
    """What one card would draw for the whole that `x` `[*, any, N, C]` is rows of: `[*, N, C]`.

    Every rank draws all of it, so all ranks go on alike.
    """
    if not layer.training or layer.p == 0.0:
        return None
    *lead, _, N, C = x.shape
    whole = x.new_empty(1).expand(*lead, N, N, C)
    return cast(Tensor, layer.sample_mask(whole).reshape(*lead, N, C))


def added(x: Tensor, update: Tensor, drop: Tensor | None) -> Tensor:
    """x plus an update, dropped out by a mask `[*, N, C]` that its rows share."""
    return x + (update if drop is None else update * drop[..., None, :, :])


def transition(module: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """x and its transition."""
    found = transition_of(module, x, mask)
    return added(x, module(x, mask), None) if found is None else found


def all_biases(
    module: Any, norm: Any, layer: Any, z: Tensor, axis: Axis, *, dim: int, length: int
) -> tuple[Tensor, float, Tensor]:
    """The attention bias `[*, H, N, N]` of all pairs, a factor that it has, the z to go on with.

    Args:
        module: the attention.
        norm: of the pairs.
        layer: from the pairs to one number a head.
        z: this rank's rows (`dim` -2) or columns (-1) of the pairs.
        axis: who has the others.
        dim: of the bias, along which it is put together.
        length: N.
    """
    own = pair_bias_of(module, z)
    bias, factor = (None, 1.0) if own is None else (own[0], module.mha.c_hidden**0.5)
    z = z if own is None else own[1]
    if bias is None:
        bias = layer(norm(z)).movedim(-1, -3)
    return gather(bias, axis, dim=dim, length=length), factor, z


def attend(
    module: Any, norm: Any, x: Tensor, bias: Tensor, factor: float, mask: Tensor,
    drop: Tensor | None,
) -> Tensor:  # fmt: skip
    """Any rows of x and their attention along the last position axis.

    Args:
        module: the attention.
        norm: of x.
        x: `[*, n, N, C]`.
        bias: `[*, H, N, N]`, times `factor`.
        factor: see `bias`.
        mask: `[*, n, N]`.
        drop: `[*, N, C]`, or None.
    """
    found: Tensor | None = attention_of(module, x, bias, mask, bias_scale=factor, drop_mask=drop)
    if found is not None:
        return found
    return added(x, _plain_update(module, norm(x), bias / factor, mask), drop)


def _plain_update(module: Any, x: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
    key_bias = mask_bias(mask, module.inf)[..., :, None, None, :]
    update: Tensor = module.mha(x, x, [key_bias, bias[..., None, :, :, :]])
    return update


def _attend_start(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """z and its attention around the starting node, on rows."""
    norm, N = module.layer_norm, mask.shape[-1]
    bias, factor, z = all_biases(module, norm, module.linear, z, axis, dim=-2, length=N)
    return attend(module, norm, z, bias, factor, axis.part(mask, -2), drop)


def _attend_end(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """Rows of z and its attention around the ending node, which works on columns."""
    norm, N = module.layer_norm, mask.shape[-1]
    z = exchange(z, axis, split=-2, join=-3, length=N)  # [*, N, n, C]
    bias, factor, z = all_biases(module, norm, module.linear, z, axis, dim=-1, length=N)
    bias, mask = bias.transpose(-1, -2), axis.part(mask, -1)
    found: Tensor | None = attention_of(
        module, z, bias, mask, columns=True, bias_scale=factor, drop_mask=drop,
        drop_columnwise=True,
    )  # fmt: skip
    if found is None:
        x = norm(z).transpose(-2, -3)
        update = _plain_update(module, x, bias / factor, mask.transpose(-1, -2)).transpose(-2, -3)
        found = z + (update if drop is None else update * drop[..., :, None, :])
    return exchange(found, axis, split=-3, join=-2, length=N)


def _multiply(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """z and its triangle multiplication, on rows; the product works on channels."""
    N = mask.shape[-1]
    mask = axis.part(mask, -2)
    found: Tensor | None = triangle_multiplication_of(
        module, z, mask, product_of(axis, N), drop_mask=drop
    )
    if found is not None:
        return found
    x = module.layer_norm_in(z)
    a, b = module._project(x, mask.to(x.dtype)[..., None])
    E = a.shape[-1]
    a, b = (  # [*, e, N, N]
        exchange(t.movedim(-1, -3), axis, split=-3, join=-2, length=N) for t in (a, b)
    )
    product = torch.matmul(a, b.mT) if module.outgoing else torch.matmul(a.mT, b)
    product = exchange(product, axis, split=-2, join=-3, length=E).movedim(-3, -1)
    update = module.linear_z(module.layer_norm_out(product)) * torch.sigmoid(module.linear_g(x))
    return added(z, update, drop)

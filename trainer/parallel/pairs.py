"""The pair half of a block on parts of the pairs: rows i, and for a while columns j.

Letters: N residues, n of them here, C channels, H heads, E hidden channels.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from evofeed.kernels import attention_of, transition_of, triangle_multiplication_of
from evofeed.trainer.model.primitives import mask_bias
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchange, exchanged, gather

__all__ = ["added", "drop_mask", "pair_stack", "template_block", "transition"]


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


def _attend_start(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """z and its attention around the starting node, on rows."""
    x = module.layer_norm(z)
    bias = gather(module.linear(x), axis, dim=-3, length=mask.shape[-1]).movedim(-1, -3)
    mask = axis.part(mask, -2)
    found: Tensor | None = attention_of(module, z, bias, mask, drop_mask=drop)
    if found is not None:
        return found
    key_bias = mask_bias(mask, module.inf)[..., :, None, None, :]
    update = module.mha(x, x, [key_bias, bias[..., None, :, :, :]])
    return added(z, update, drop)


def _attend_end(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """Rows of z and its attention around the ending node, which works on columns."""
    N = mask.shape[-1]
    z = exchange(z, axis, split=-2, join=-3, length=N)  # [*, N, n, C]
    x = module.layer_norm(z)
    bias = gather(module.linear(x), axis, dim=-2, length=N).movedim(-1, -3).transpose(-1, -2)
    mask = axis.part(mask, -1)
    found: Tensor | None = attention_of(
        module, z, bias, mask, columns=True, drop_mask=drop, drop_columnwise=True
    )  # fmt: skip
    if found is None:
        key_bias = mask_bias(mask.transpose(-1, -2), module.inf)[..., :, None, None, :]
        x = x.transpose(-2, -3)
        update = module.mha(x, x, [key_bias, bias[..., None, :, :, :]]).transpose(-2, -3)
        found = z + (update if drop is None else update * drop[..., :, None, :])
    return exchange(found, axis, split=-3, join=-2, length=N)


def _multiply(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """z and its triangle multiplication, on rows; the product works on channels."""
    N = mask.shape[-1]
    mask = axis.part(mask, -2)
    found: Tensor | None = triangle_multiplication_of(
        module, z, mask, ChannelProduct(axis, N), drop_mask=drop
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


class ChannelProduct:
    """The product inside a fused triangle multiplication of rows: every rank has some channels.

    One all-to-all turns rows of all channels of a and b into whole matrices of a few channels,
    another turns the product back. Both directions of the triangle are alike.

    Args:
        axis: who takes part.
        length: N.
    """

    def __init__(self, axis: Axis, length: int) -> None:
        self._axis, self._length = axis, length

    def __call__(self, ab: Tensor, outgoing: bool) -> tuple[Tensor, Tensor]:
        """The product's rows `[E, B, n, N]` of those of a and b `[2, E, B, n, N]`.

        Also what `gradient` takes.
        """
        a, b = whole = self._channels(ab)
        product = torch.matmul(a, b.mT) if outgoing else torch.matmul(a.mT, b)
        return self._rows(product, ab.shape[1]), whole

    def gradient(self, dproduct: Tensor, whole: Tensor, outgoing: bool) -> Tensor:
        """The gradient of `ab` from that of the product."""
        E = dproduct.shape[0]
        d, (a, b) = self._channels(dproduct), whole
        grads = torch.empty_like(whole)
        if outgoing:  # x_ij = sum_k a_ik b_jk
            torch.matmul(d, b, out=grads[0])
            torch.matmul(d.mT, a, out=grads[1])
        else:  # x_ij = sum_k a_ki b_kj
            torch.matmul(b, d.mT, out=grads[0])
            torch.matmul(a, d, out=grads[1])
        return self._rows(grads, E)

    def _channels(self, x: Tensor) -> Tensor:
        return exchanged(x, self._axis, -4, -2, self._length)

    def _rows(self, x: Tensor, channels: int) -> Tensor:
        return exchanged(x, self._axis, -2, -4, channels)

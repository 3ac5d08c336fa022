"""The pair half of a block on parts of the pairs: rows i, and for a while columns j.

Letters: N residues, n of them here, C channels, H heads, E hidden channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.parts import (
    attention_of,
    drop_mask,
    pair_bias_of,
    transition_of,
    triangle_multiplication_of,
    triangle_projections_of,
)
from evofeed.trainer.model.primitives import mask_bias
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import Others, exchange, gather
from evofeed.trainer.parallel.rows import rows_at_once, slices
from evofeed.trainer.parallel.triangle_product import (
    ChannelProduct,
    Known,
    product_of,
)


def pair_block(
    block: Any, z: Tensor, mask: Tensor, mask_trans: bool, axis: Axis
) -> Tensor:  # fmt: skip
    """`PairStack` on rows `[*, n, N, C]`, or `TemplatePairStackBlock` on those of all templates.

    The mask is whole, and one for all templates.
    """
    rows, columns = (
        (block.dropout_row, block.dropout_col) if hasattr(block, "dropout_col")
        else (block.ps_dropout_row_layer,) * 2
    )  # fmt: skip
    multiply = [(_multiply, one, rows) for one in (block.tri_mul_out, block.tri_mul_in)]
    attend = [(_attend, block.tri_att_start, rows), (_attend_end, block.tri_att_end, columns)]
    first = getattr(block, "tri_mul_first", True)
    for update, module, drop in multiply + attend if first else attend + multiply:
        z = kept(z, update(module, z, mask, whole_drop_mask(drop, z), axis), axis)
    own = axis.part(mask, -2) if mask_trans else None
    return transition_over(block.pair_transition, z, own, axis)


def kept(z: Tensor, new: Tensor, axis: Axis) -> Tensor:
    """The new pairs, in the memory of those before where that may be written over."""
    if not axis.in_place or new.data_ptr() == z.data_ptr():
        return new
    return z.copy_(new)


def whole_drop_mask(layer: Any, x: Tensor) -> Tensor | None:
    """What one card would draw for the whole that `x` `[*, any, N, C]` is rows of: `[*, N, C]`.

    Every rank draws all of it, so all ranks go on alike.
    """
    *lead, _, N, C = x.shape
    found = drop_mask(layer, x.reshape(math.prod(lead), *x.shape[-3:]), N)
    return None if found is None else found.view(*lead, N, C)


def added(x: Tensor, update: Tensor, drop: Tensor | None) -> Tensor:
    """x plus an update, dropped out by a mask `[*, N, C]` that its rows share."""
    return x + (update if drop is None else update * drop[..., None, :, :])


def transition(module: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """x and its transition."""
    found = transition_of(module, x, mask)
    return added(x, module(x, mask), None) if found is None else found


def transition_over(module: Any, z: Tensor, mask: Tensor | None, axis: Axis) -> Tensor:
    """z `[*, n, N, C]` and its transition; where it may be written over, a few rows at a time."""
    hidden = module.linear_1.weight.shape[0]
    pair = 2 * (hidden + z.shape[-1]) * z.element_size() * z.shape[:-3].numel()
    at_once = rows_at_once(z.shape[-2] * pair, z.device) if axis.in_place else None
    if at_once is None or at_once >= z.shape[-3]:
        return kept(z, transition(module, z, mask), axis)
    for some in slices(0, z.shape[-3], at_once):
        part = z[..., some, :, :]
        part.copy_(transition(module, part, None if mask is None else mask[..., some, :]))
    return z


def plain_attention(
    module: Any, x: Tensor, bias: Tensor, mask: Tensor, drop: Tensor | None
) -> Tensor:  # fmt: skip
    """Update, dropped out, of rows x `[*, n, N, C]`, normalised, by attention along N.

    Bias is `[*, H, N, N]`, mask `[*, n, N]`, drop `[*, N, C]`.
    """
    key_bias = mask_bias(mask, module.inf)[..., :, None, None, :]
    update: Tensor = module.mha(x, x, [key_bias, bias[..., None, :, :, :]])
    return update if drop is None else update * drop[..., None, :, :]


def _attend_end(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """Rows of z and its attention around the ending node, which works on columns."""
    N = mask.shape[-1]
    z = exchange(z, axis, split=-2, join=-3, length=N)  # [*, N, n, C]
    z = _attend(module, z, mask, drop, axis, columns=True)
    return exchange(z, axis, split=-3, join=-2, length=N)


def _attend(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis, *, columns: bool = False
) -> Tensor:  # fmt: skip
    """z and its attention along rows `[*, n, N, C]`, or columns `[*, N, n, C]`.

    Along rows it is that around the starting node.
    """
    N = mask.shape[-1]
    mask = axis.part(mask, -1 if columns else -2)
    by_row = mask.transpose(-1, -2) if columns else mask

    def turned(x: Tensor) -> Tensor:
        return x.transpose(-2, -3) if columns else x

    at_once = _attention_rows(module, z, N)
    # Of all rows here what attention keeps would be too much; alike on all ranks.
    if drop is None and at_once is not None and at_once * N < z.shape[-2] * z.shape[-3]:
        return turned(_attend_in_parts(module, turned(z), by_row, axis))
    if axis.all_have(N):
        found: Tensor | None = attention_of(
            module, z, None, mask, others=Others(axis, N), columns=columns, drop_mask=drop
        )
        if found is not None:
            return found
    x = turned(module.layer_norm(z))
    bias = gather(module.linear(x).movedim(-1, -3), axis, dim=-2, length=N)
    return z + turned(plain_attention(module, x, bias, by_row, drop))


def _attention_rows(module: Any, z: Tensor, N: int) -> int | None:
    keys = logits_of(module.mha, z, N) + z.shape[-1] * 8 * z.element_size()
    return rows_at_once(N * keys * z.shape[:-3].numel(), z.device)


def logits_of(attention: Any, x: Tensor, keys: int) -> int:
    """Bytes of a query's logits, which only plain attention keeps, and of what is made of them."""
    return 0 if x.is_cuda else 3 * attention.no_heads * keys * x.element_size()


def _attend_in_parts(module: Any, z: Tensor, mask: Tensor, axis: Axis) -> Tensor:
    """Rows `[*, n, N, C]`, in any layout, and their attention, some rows at a time."""
    n, N = z.shape[-3:-1]
    parts = list(slices(0, n, _attention_rows(module, z, N) or n))
    biases, factor = [z.new_empty(*z.shape[:-3], module.mha.no_heads, 0, N)], 1.0
    for some in parts:
        rows = z[..., some, :, :].contiguous()
        made = pair_bias_of(module, rows)
        factor = 1.0 if made is None else module.mha.c_hidden**0.5
        plain = module.linear(module.layer_norm(rows)).movedim(-1, -3) if made is None else made[0]
        biases.append(plain)
    bias = gather(torch.cat(biases, dim=-2), axis, dim=-2, length=N)
    del biases
    found = z if axis.in_place else torch.empty_like(z)
    for some in parts:
        rows, own = z[..., some, :, :].contiguous(), mask[..., some, :]
        new: Tensor | None = attention_of(module, rows, bias, own, bias_scale=factor)
        if new is None:
            x = module.layer_norm(rows)
            new = rows + plain_attention(module, x, bias / factor, own, None)
        found[..., some, :, :] = new
    return found


def _multiply(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> Tensor:  # fmt: skip
    """z and its triangle multiplication, on rows; the product works on channels."""
    N = mask.shape[-1]
    mask = axis.part(mask, -2)
    at_once = _product_rows(module, z) if axis.in_place and axis.all_have(N) else None
    if drop is None and at_once is not None and at_once < N:
        return _multiply_in_parts(module, z, mask, axis, at_once)
    if axis.all_have(N):
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
    product = torch.matmul(a, b.mT) if module._outgoing else torch.matmul(a.mT, b)
    product = exchange(product, axis, split=-2, join=-3, length=E).movedim(-3, -1)
    return _plain_end(module, z, x, product, drop)


def _plain_end(
    module: Any, z: Tensor, x: Tensor, product: Tensor, drop: Tensor | None
) -> Tensor:  # fmt: skip
    """z plus its triangle multiplication, from the product `[*, n, N, E]` and z normalised, x."""
    update = module.linear_z(module.layer_norm_out(product)) * torch.sigmoid(module.linear_g(x))
    return added(z, update, drop)


def _product_rows(module: Any, z: Tensor) -> int | None:
    """Rows, or columns, of a product at once: where a kernel takes 16 pairs, whole ones."""
    channels = 3 * module.c_hidden + 2 * z.shape[-1]
    # Twice the share: a narrower product would wait for the memory, which reads one side whole.
    pair = channels * z.element_size() * z.shape[:-3].numel() // 2
    at_once = rows_at_once(z.shape[-2] * pair, z.device)
    return at_once if at_once is None or at_once < 16 else at_once // 16 * 16


def _multiply_in_parts(
    module: Any, z: Tensor, mask: Tensor, axis: Axis, at_once: int
) -> Tensor:  # fmt: skip
    """Rows z, written over by themselves and their triangle multiplication, some at a time.

    A rank alone keeps one side of the product beside z. Of outgoing edges it goes on by rows: they
    need all of b, and of a and of z only themselves. Of incoming ones, where a and b change places,
    by columns. Ranks that share a chain keep both sides, and the product takes a's place.
    """
    (n, N), outgoing, alone = z.shape[-3:-1], module._outgoing, axis.size == 1
    kept = slice(1, 2) if outgoing else slice(0, 1)
    whole: Tensor | None = None
    for some in slices(0, n, at_once):
        sides = _sides(module, z[..., some, :, :], mask[..., some, :])
        sides = sides[kept] if alone else sides
        if whole is None:
            whole = sides.new_empty(*sides.shape[:-2], n, N)
        whole[..., some, :] = sides
        del sides
    assert whole is not None
    made = whole[0] if alone else ChannelProduct(axis, N).over(whole, outgoing)

    def of_known(ab: Tensor) -> Tensor:
        """x_ij = sum_k a_ik b_jk, or sum_k a_ki b_kj, of which one side is known."""
        return torch.matmul(ab[0], made.mT) if outgoing else torch.matmul(made.mT, ab[1])

    by_rows = outgoing or not alone
    for some in slices(0, n if by_rows else N, at_once):
        place = some.start, some.stop - some.start
        part = z.narrow(-3 if by_rows else -2, *place)
        own = mask.narrow(-2 if by_rows else -1, *place)
        product = Known(of_known if alone else made[..., some, :])
        new: Tensor | None = triangle_multiplication_of(
            module, part.contiguous(), own, product, drop_mask=None
        )
        if new is None:
            x = module.layer_norm_in(part)
            found, _ = product(_plain_sides(module, x, own), outgoing)
            found = found.movedim(0, -1).reshape(*part.shape[:-1], -1)
            new = _plain_end(module, part, x, found, None)
        part.copy_(new)
    return z


def _sides(module: Any, z: Tensor, mask: Tensor) -> Tensor:
    """Both sides of the product, `[2, E, B, n, N]`, of rows of the pairs."""
    found = triangle_projections_of(module, z, mask)
    return _plain_sides(module, module.layer_norm_in(z), mask) if found is None else found


def _plain_sides(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Those of normalised pairs."""
    sides = torch.stack(module._project(x, mask.to(x.dtype)[..., None])).movedim(-1, 1)
    return sides.reshape(*sides.shape[:2], -1, *sides.shape[-2:])

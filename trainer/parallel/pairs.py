"""The pair half of a block on a rank's part of the pairs: rows i, in between columns j.

Letters: N residues, n of them on this rank, C channels, H heads, E hidden channels.
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
from evofeed.trainer.parallel.rows import chunks, rows_per_chunk
from evofeed.trainer.parallel.triangle_product import ChannelProduct, PrecomputedProduct, product_of


def pair_block(block: Any, z: Tensor, mask: Tensor, mask_trans: bool, axis: Axis) -> Tensor:
    """`PairStack` on rows `[*, n, N, C]`, or `TemplatePairStackBlock` on those of all templates.

    The mask is that of all rows, the same for all templates.
    """
    rows, columns = (
        (block.dropout_row, block.dropout_col) if hasattr(block, "dropout_col")
        else (block.ps_dropout_row_layer,) * 2
    )  # fmt: skip
    multiply = [(_multiply, module, rows) for module in (block.tri_mul_out, block.tri_mul_in)]
    attend = [(_attend, block.tri_att_start, rows), (_attend_end, block.tri_att_end, columns)]
    first = getattr(block, "tri_mul_first", True)
    for update, module, drop in multiply + attend if first else attend + multiply:
        z = updated(z, update(module, z, mask, full_drop_mask(drop, z), axis), axis)
    row_mask = axis.part(mask, -2) if mask_trans else None
    return transition_in_chunks(block.pair_transition, z, row_mask, axis)


def updated(z: Tensor, new: Tensor, axis: Axis) -> Tensor:
    """The new pairs, in the memory of the old ones if the axis is `in_place`."""
    if not axis.in_place or new.data_ptr() == z.data_ptr():
        return new
    return z.copy_(new)


def full_drop_mask(layer: Any, x: Tensor) -> Tensor | None:
    """The mask `[*, N, C]` that one GPU would draw for the tensor whose rows `[*, any, N, C]` are.

    Every rank draws the full mask, so that the generators of all ranks stay in the same state.
    """
    *lead, _, N, C = x.shape
    mask = drop_mask(layer, x.reshape(math.prod(lead), *x.shape[-3:]), N)
    return None if mask is None else mask.view(*lead, N, C)


def dropout_add(x: Tensor, update: Tensor, drop: Tensor | None) -> Tensor:
    """x plus an update after dropout, by a mask `[*, N, C]` that the rows share."""
    return x + (update if drop is None else update * drop[..., None, :, :])


def transition(module: Any, x: Tensor, mask: Tensor | None) -> Tensor:
    """x plus its transition."""
    fused = transition_of(module, x, mask)
    return dropout_add(x, module(x, mask), None) if fused is None else fused


def transition_in_chunks(module: Any, z: Tensor, mask: Tensor | None, axis: Axis) -> Tensor:
    """z `[*, n, N, C]` plus its transition; in place, a chunk of rows at a time."""
    hidden = module.linear_1.weight.shape[0]
    pair = 2 * (hidden + z.shape[-1]) * z.element_size() * z.shape[:-3].numel()
    chunk_size = rows_per_chunk(z.shape[-2] * pair, z.device) if axis.in_place else None
    if chunk_size is None or chunk_size >= z.shape[-3]:
        return updated(z, transition(module, z, mask), axis)
    for chunk in chunks(0, z.shape[-3], chunk_size):
        part = z[..., chunk, :, :]
        part.copy_(transition(module, part, None if mask is None else mask[..., chunk, :]))
    return z


def plain_attention(
    module: Any, x: Tensor, bias: Tensor, mask: Tensor, drop: Tensor | None
) -> Tensor:  # fmt: skip
    """Update by attention along N of rows x `[*, n, N, C]`, normalised; after dropout.

    Bias is `[*, H, N, N]`, mask `[*, n, N]`, drop `[*, N, C]`.
    """
    key_bias = mask_bias(mask, module.inf)[..., :, None, None, :]
    update: Tensor = module.mha(x, x, [key_bias, bias[..., None, :, :, :]])
    return update if drop is None else update * drop[..., None, :, :]


def _attend_end(module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis) -> Tensor:
    """Rows of z plus its attention around the ending node, which works on columns."""
    N = mask.shape[-1]
    z = exchange(z, axis, split=-2, join=-3, length=N)  # [*, N, n, C]
    z = _attend(module, z, mask, drop, axis, columns=True)
    return exchange(z, axis, split=-3, join=-2, length=N)


def _attend(
    module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis, *, columns: bool = False
) -> Tensor:  # fmt: skip
    """z plus its attention along rows `[*, n, N, C]` (starting node) or columns `[*, N, n, C]`."""
    N = mask.shape[-1]
    mask = axis.part(mask, -1 if columns else -2)
    by_row = mask.transpose(-1, -2) if columns else mask

    def transposed(x: Tensor) -> Tensor:
        return x.transpose(-2, -3) if columns else x

    chunk_size = _attention_chunk_size(module, z, N)
    # All rows at once would take too much memory; the choice is the same on all ranks.
    if drop is None and chunk_size is not None and chunk_size * N < z.shape[-2] * z.shape[-3]:
        return transposed(_attend_in_chunks(module, transposed(z), by_row, axis))
    if axis.all_nonempty(N):
        fused: Tensor | None = attention_of(
            module, z, None, mask, others=Others(axis, N), columns=columns, drop_mask=drop
        )
        if fused is not None:
            return fused
    x = transposed(module.layer_norm(z))
    bias = gather(module.linear(x).movedim(-1, -3), axis, dim=-2, length=N)
    return z + transposed(plain_attention(module, x, bias, by_row, drop))


def _attention_chunk_size(module: Any, z: Tensor, N: int) -> int | None:
    keys = logits_of(module.mha, z, N) + z.shape[-1] * 8 * z.element_size()
    return rows_per_chunk(N * keys * z.shape[:-3].numel(), z.device)


def logits_of(attention: Any, x: Tensor, keys: int) -> int:
    """Bytes of a query's logits, softmax and bias, which only attention on a CPU stores."""
    return 0 if x.is_cuda else 3 * attention.no_heads * keys * x.element_size()


def _attend_in_chunks(module: Any, z: Tensor, mask: Tensor, axis: Axis) -> Tensor:
    """Rows `[*, n, N, C]`, in any layout, plus their attention, a chunk of rows at a time."""
    n, N = z.shape[-3:-1]
    row_chunks = list(chunks(0, n, _attention_chunk_size(module, z, N) or n))
    biases, factor = [z.new_empty(*z.shape[:-3], module.mha.no_heads, 0, N)], 1.0
    for chunk in row_chunks:
        rows = z[..., chunk, :, :].contiguous()
        fused = pair_bias_of(module, rows)
        factor = 1.0 if fused is None else module.mha.c_hidden**0.5
        if fused is None:
            biases.append(module.linear(module.layer_norm(rows)).movedim(-1, -3))
        else:
            biases.append(fused[0])
    bias = gather(torch.cat(biases, dim=-2), axis, dim=-2, length=N)
    del biases
    result = z if axis.in_place else torch.empty_like(z)
    for chunk in row_chunks:
        rows, row_mask = z[..., chunk, :, :].contiguous(), mask[..., chunk, :]
        new: Tensor | None = attention_of(module, rows, bias, row_mask, bias_scale=factor)
        if new is None:
            x = module.layer_norm(rows)
            new = rows + plain_attention(module, x, bias / factor, row_mask, None)
        result[..., chunk, :, :] = new
    return result


def _multiply(module: Any, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis) -> Tensor:
    """z plus its triangle multiplication, on rows; the product works on channels."""
    N = mask.shape[-1]
    mask = axis.part(mask, -2)
    in_chunks = axis.in_place and axis.all_nonempty(N)
    chunk_size = _product_chunk_size(module, z) if in_chunks else None
    if drop is None and chunk_size is not None and chunk_size < N:
        return _multiply_in_chunks(module, z, mask, axis, chunk_size)
    if axis.all_nonempty(N):
        fused: Tensor | None = triangle_multiplication_of(
            module, z, mask, product_of(axis, N), drop_mask=drop
        )
        if fused is not None:
            return fused

    x = module.layer_norm_in(z)
    a, b = module._project(x, mask.to(x.dtype)[..., None])
    E = a.shape[-1]
    a, b = (  # [*, e, N, N]
        exchange(t.movedim(-1, -3), axis, split=-3, join=-2, length=N) for t in (a, b)
    )
    product = torch.matmul(a, b.mT) if module._outgoing else torch.matmul(a.mT, b)
    product = exchange(product, axis, split=-2, join=-3, length=E).movedim(-3, -1)
    return _plain_output(module, z, x, product, drop)


def _plain_output(
    module: Any, z: Tensor, x: Tensor, product: Tensor, drop: Tensor | None
) -> Tensor:  # fmt: skip
    """z plus its triangle multiplication, from the product `[*, n, N, E]` and z normalised, x."""
    update = module.linear_z(module.layer_norm_out(product)) * torch.sigmoid(module.linear_g(x))
    return dropout_add(z, update, drop)


def _product_chunk_size(module: Any, z: Tensor) -> int | None:
    """Rows, or columns, of a product per chunk: a multiple of 16, a kernel's tile, if possible."""
    channels = 3 * module.c_hidden + 2 * z.shape[-1]
    # Twice the share: every chunk reads one side in full, and smaller ones are memory-bound.
    pair = channels * z.element_size() * z.shape[:-3].numel() // 2
    chunk_size = rows_per_chunk(z.shape[-2] * pair, z.device)
    return chunk_size if chunk_size is None or chunk_size < 16 else chunk_size // 16 * 16


def _multiply_in_chunks(
    module: Any, z: Tensor, mask: Tensor, axis: Axis, chunk_size: int
) -> Tensor:  # fmt: skip
    """Rows z plus their triangle multiplication, in place, a chunk at a time.

    A single rank stores one side of the product. Outgoing edges go by rows: a chunk needs all of b,
    and only its own rows of a and of z. Incoming edges, where a and b change roles, go by columns.
    Ranks that share a chain store both sides, and the product overwrites a.
    """
    (n, N), outgoing, alone = z.shape[-3:-1], module._outgoing, axis.size == 1
    stored_side = slice(1, 2) if outgoing else slice(0, 1)
    stored: Tensor | None = None
    for chunk in chunks(0, n, chunk_size):
        sides = _sides(module, z[..., chunk, :, :], mask[..., chunk, :])
        sides = sides[stored_side] if alone else sides
        if stored is None:
            stored = sides.new_empty(*sides.shape[:-2], n, N)
        stored[..., chunk, :] = sides
        del sides
    assert stored is not None
    side_or_product = stored[0] if alone else ChannelProduct(axis, N).in_place(stored, outgoing)

    def with_stored_side(ab: Tensor) -> Tensor:
        """x_ij = sum_k a_ik b_jk, or sum_k a_ki b_kj, with b, or a, from the stored side."""
        side = side_or_product.mT
        return torch.matmul(ab[0], side) if outgoing else torch.matmul(side, ab[1])

    by_rows = outgoing or not alone
    for chunk in chunks(0, n if by_rows else N, chunk_size):
        span = chunk.start, chunk.stop - chunk.start
        part = z.narrow(-3 if by_rows else -2, *span)
        part_mask = mask.narrow(-2 if by_rows else -1, *span)
        product = PrecomputedProduct(with_stored_side if alone else side_or_product[..., chunk, :])
        new: Tensor | None = triangle_multiplication_of(
            module, part.contiguous(), part_mask, product, drop_mask=None
        )
        if new is None:
            x = module.layer_norm_in(part)
            rows, _ = product(_plain_sides(module, x, part_mask), outgoing)
            rows = rows.movedim(0, -1).reshape(*part.shape[:-1], -1)
            new = _plain_output(module, part, x, rows, None)
        part.copy_(new)
    return z


def _sides(module: Any, z: Tensor, mask: Tensor) -> Tensor:
    """Both sides of the product, `[2, E, B, n, N]`, from rows of the pairs."""
    fused = triangle_projections_of(module, z, mask)
    return _plain_sides(module, module.layer_norm_in(z), mask) if fused is None else fused


def _plain_sides(module: Any, x: Tensor, mask: Tensor) -> Tensor:
    """The sides from normalised pairs, without a fused operator."""
    sides = torch.stack(module._project(x, mask.to(x.dtype)[..., None])).movedim(-1, 1)
    return sides.reshape(*sides.shape[:2], -1, *sides.shape[-2:])

"""An Evoformer block on a rank's parts: rows of the MSA, columns of it, rows of the pairs.

Letters: S sequences, s of them on this rank, N residues, n of them on this rank, C channels,
E channels of a projection.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.parts import (
    attention_of,
    global_attention_of,
    outer_product_mean_of,
    pair_bias_of,
)
from evofeed.trainer.model.primitives import full_precision
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import Others, exchange, gather, gathered
from evofeed.trainer.parallel.pairs import (
    dropout_add,
    full_drop_mask,
    logits_of,
    pair_block,
    plain_attention,
    transition,
    transition_in_chunks,
    updated,
)
from evofeed.trainer.parallel.rows import chunks, rows_per_chunk


def msa_block(
    block: Any, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, mask_trans: bool,
    axis: Axis,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`MSABlock` on rows of the MSA `[*, s, N, C]` and of the pairs `[*, n, N, C]`.

    The masks are full. Row attention works on rows of the MSA, all that follows on columns.
    """
    S, N = msa_mask.shape[-2:]
    columns = axis.part(msa_mask, -1)
    if block.opm_first:
        m_columns = exchange(m, axis, split=-2, join=-3, length=S)
        new, _ = _outer_product_mean(block.outer_product_mean, m_columns, z, msa_mask, axis)
        z = updated(z, new, axis)
        del new, m_columns
    drop = full_drop_mask(block.msa_dropout_layer, m)
    m, z = _attend_rows(block.msa_att_row, m, z, axis.part(msa_mask, -2), drop, axis)
    m = exchange(m, axis, split=-2, join=-3, length=S)  # [*, S, n, C]
    if block.msa_att_col is not None:
        m = _attend_columns(block.msa_att_col, m, columns)
    transition_mask = columns if block._masks_msa(mask_trans) else None
    if m.is_cuda:  # the kernel does not store the hidden layer
        m = transition(block.msa_transition, m, transition_mask)
    else:
        m = transition_in_chunks(block.msa_transition, m, transition_mask, axis)
    if not block.opm_first:
        new, m = _outer_product_mean(block.outer_product_mean, m, z, msa_mask, axis)
        z = updated(z, new, axis)
        del new
    m = exchange(m, axis, split=-3, join=-2, length=N)
    return m, pair_block(block.pair_stack, z, pair_mask, mask_trans, axis)


def _attend_rows(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of m plus their attention, biased by all pairs; and z to continue with."""
    N = mask.shape[-1]
    fused = pair_bias_of(module, z) if axis.all_nonempty(N) else None
    if fused is None:
        bias, factor = module.linear_z(module.layer_norm_z(z)).movedim(-1, -3), 1.0
    else:
        (bias, z), factor = fused, module.mha.c_hidden**0.5
    bias = gather(bias, axis, dim=-2, length=N)
    new: Tensor | None = attention_of(module, m, bias, mask, bias_scale=factor, drop_mask=drop)
    if new is None:
        new = _plain_rows(module, m, bias / factor, mask, drop)
    return new, z


def _plain_rows(module: Any, m: Tensor, bias: Tensor, mask: Tensor, drop: Tensor | None) -> Tensor:
    """Rows of m plus their attention, in chunks if there is no gradient."""
    s, N = m.shape[-3:-1]
    chunk_size = rows_per_chunk(N * logits_of(module.mha, m, N) * m.shape[:-3].numel(), m.device)
    if chunk_size is None or chunk_size >= s:
        return m + plain_attention(module, module.layer_norm_m(m), bias, mask, drop)
    new = torch.empty_like(m)
    for chunk in chunks(0, s, chunk_size):
        rows, row_mask = m[..., chunk, :, :], mask[..., chunk, :]
        update = plain_attention(module, module.layer_norm_m(rows), bias, row_mask, drop)
        new[..., chunk, :, :] = rows + update
    return new


def _attend_columns(module: Any, m: Tensor, mask: Tensor) -> Tensor:
    """Columns of m plus their attention, global in the extra-MSA stack."""
    inner = getattr(module, "_msa_att", None)
    if inner is None:
        fused = global_attention_of(module, m, mask)
    else:
        fused = attention_of(inner, m, None, mask, columns=True)
    if fused is not None:
        return fused
    S, n = m.shape[-3:-1]
    nbytes = 0 if inner is None else S * logits_of(inner.mha, m, S) * m.shape[:-3].numel()
    chunk_size = rows_per_chunk(nbytes, m.device)
    if chunk_size is None or chunk_size >= n:
        return dropout_add(m, module(m, mask), None)
    new = torch.empty_like(m)
    for chunk in chunks(0, n, chunk_size):
        columns = m[..., chunk, :]
        new[..., chunk, :] = columns + module(columns, mask[..., chunk])
    return new


def _outer_product_mean(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, axis: Axis
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of z plus outer products of this rank's columns of m with all; m to continue with."""
    columns_mask, N = axis.part(mask, -1), mask.shape[-1]
    chunk_size = rows_per_chunk(N * module.linear_out.weight.shape[1] * z.element_size(), z.device)
    if chunk_size is not None and chunk_size < max(axis.lengths(N)):
        return _outer_in_chunks(module, m, z, mask, axis, chunk_size), m
    fused: tuple[Tensor, Tensor] | None = None
    if axis.all_nonempty(N):
        fused = outer_product_mean_of(module, m, columns_mask, z, Others(axis, N, mask))
    if fused is not None:
        return fused
    b = gather(_projection_b(module, m, columns_mask), axis, dim=-2, length=N)
    return _plain_outer(module, m, z, columns_mask, mask, b), m


def _outer_in_chunks(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, axis: Axis, chunk_size: int
) -> Tensor:  # fmt: skip
    """As `_outer_product_mean`, a chunk of rows of z at a time: outer products are not stored."""
    columns_mask = axis.part(mask, -1)
    b = gathered(_projection_b(module, m, columns_mask), axis, -2, mask.shape[-1])
    result, others = z if axis.in_place else torch.empty_like(z), PrecomputedColumns(b, mask)
    for start in range(0, m.shape[-2], chunk_size):
        length = min(chunk_size, m.shape[-2] - start)
        chunk, chunk_mask = m.narrow(-2, start, length), columns_mask.narrow(-1, start, length)
        rows = z.narrow(-3, start, length)
        fused = outer_product_mean_of(module, chunk, chunk_mask, rows, others)
        new = _plain_outer(module, chunk, rows, chunk_mask, mask, b) if fused is None else fused[0]
        result.narrow(-3, start, length).copy_(new)
    return result


def _projection_b(module: Any, m: Tensor, mask: Tensor) -> Tensor:
    """The projection b, the right factor of the outer products, of columns of m."""
    b: Tensor = module.linear_2(module.layer_norm(m))
    return b * mask.to(b.dtype)[..., None]


def _plain_outer(
    module: Any, m: Tensor, z: Tensor, columns_mask: Tensor, mask: Tensor, b: Tensor
) -> Tensor:  # fmt: skip
    x = module.layer_norm(m)
    a = module.linear_1(x) * columns_mask.to(x.dtype)[..., None]
    outer = torch.einsum("...sic,...sje->...ijce", a, b).flatten(-2)
    update = module.linear_out(outer)
    with full_precision(mask):  # counts above 256 are not exact in bfloat16
        shared = torch.einsum("...si,...sj->...ij", columns_mask, mask)[..., None] + module.eps
    return dropout_add(z, update / shared.to(update.dtype), None)


class PrecomputedColumns:
    """`Others` of columns already gathered, without a gradient.

    From their projection `[*, S, N, E]` and the mask of the full MSA `[*, S, N]`.
    """

    def __init__(self, b: Tensor, mask: Tensor) -> None:
        self._b = b
        self.mask = mask

    def gather(self, b: Tensor) -> Tensor:
        """All columns, whatever the argument."""
        return self._b.reshape(-1, *self._b.shape[-3:])

    def reduce(self, db: Tensor) -> Tensor:
        """Never called: only evaluation without a gradient uses gathered columns."""
        raise NotImplementedError("columns gathered before have no gradient")

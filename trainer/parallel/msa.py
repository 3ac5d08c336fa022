"""A block around MSA and pairs on parts: rows of the MSA, columns of it, rows of the pairs.

Letters: S sequences, s of them here, N residues, n of them here, C channels, E of a projection.
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
from evofeed.trainer.parallel.collectives import (
    Others,
    exchange,
    gather,
    gathered,
)
from evofeed.trainer.parallel.pairs import (
    added,
    kept,
    logits_of,
    pair_block,
    plain_attention,
    transition,
    transition_over,
    whole_drop_mask,
)
from evofeed.trainer.parallel.rows import rows_at_once, slices


def msa_block(
    block: Any, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor, mask_trans: bool,
    axis: Axis,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`MSABlock` on rows of the MSA `[*, s, N, C]` and of the pairs `[*, n, N, C]`.

    The masks are whole. Row attention works on rows of the MSA, all that follows on columns.
    """
    S, N = msa_mask.shape[-2:]
    columns = axis.part(msa_mask, -1)
    if block.opm_first:
        m_columns = exchange(m, axis, split=-2, join=-3, length=S)
        new, _ = _outer_product_mean(block.outer_product_mean, m_columns, z, msa_mask, axis)
        z = kept(z, new, axis)
        del new, m_columns
    drop = whole_drop_mask(block.msa_dropout_layer, m)
    m, z = _attend_rows(block.msa_att_row, m, z, axis.part(msa_mask, -2), drop, axis)
    m = exchange(m, axis, split=-2, join=-3, length=S)  # [*, S, n, C]
    if block.msa_att_col is not None:
        m = _attend_columns(block.msa_att_col, m, columns)
    own = columns if block._masks_msa(mask_trans) else None
    if m.is_cuda:  # a kernel keeps nothing of the hidden layer
        m = transition(block.msa_transition, m, own)
    else:
        m = transition_over(block.msa_transition, m, own, axis)
    if not block.opm_first:
        new, m = _outer_product_mean(block.outer_product_mean, m, z, msa_mask, axis)
        z = kept(z, new, axis)
        del new
    m = exchange(m, axis, split=-3, join=-2, length=N)
    return m, pair_block(block.pair_stack, z, pair_mask, mask_trans, axis)


def _attend_rows(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, drop: Tensor | None, axis: Axis
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of m and their attention, biased by all pairs; and z to go on with."""
    N = mask.shape[-1]
    made = pair_bias_of(module, z) if axis.all_have(N) else None
    if made is None:
        bias, factor = module.linear_z(module.layer_norm_z(z)).movedim(-1, -3), 1.0
    else:
        (bias, z), factor = made, module.mha.c_hidden**0.5
    bias = gather(bias, axis, dim=-2, length=N)
    found: Tensor | None = attention_of(module, m, bias, mask, bias_scale=factor, drop_mask=drop)
    if found is None:
        found = _plain_rows(module, m, bias / factor, mask, drop)
    return found, z


def _plain_rows(
    module: Any, m: Tensor, bias: Tensor, mask: Tensor, drop: Tensor | None
) -> Tensor:  # fmt: skip
    """Rows of m and their attention, a few at a time where there is no gradient."""
    s, N = m.shape[-3:-1]
    at_once = rows_at_once(N * logits_of(module.mha, m, N) * m.shape[:-3].numel(), m.device)
    if at_once is None or at_once >= s:
        return m + plain_attention(module, module.layer_norm_m(m), bias, mask, drop)
    found = torch.empty_like(m)
    for some in slices(0, s, at_once):
        rows, own = m[..., some, :, :], mask[..., some, :]
        update = plain_attention(module, module.layer_norm_m(rows), bias, own, drop)
        found[..., some, :, :] = rows + update
    return found


def _attend_columns(module: Any, m: Tensor, mask: Tensor) -> Tensor:
    """Columns of m and their attention, global in the extra-MSA stack."""
    inner = getattr(module, "_msa_att", None)
    if inner is None:
        found = global_attention_of(module, m, mask)
    else:
        found = attention_of(inner, m, None, mask, columns=True)
    if found is not None:
        return found
    S, n = m.shape[-3:-1]
    nbytes = 0 if inner is None else S * logits_of(inner.mha, m, S) * m.shape[:-3].numel()
    at_once = rows_at_once(nbytes, m.device)
    if at_once is None or at_once >= n:
        return added(m, module(m, mask), None)
    found = torch.empty_like(m)
    for some in slices(0, n, at_once):
        columns = m[..., some, :]
        found[..., some, :] = columns + module(columns, mask[..., some])
    return found


def _outer_product_mean(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, axis: Axis
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of z and the outer products of this rank's columns of m with all; m to go on with."""
    own, N = axis.part(mask, -1), mask.shape[-1]
    at_once = rows_at_once(N * module.linear_out.weight.shape[1] * z.element_size(), z.device)
    if at_once is not None and at_once < max(axis.lengths(N)):
        return _outer_by_rows(module, m, z, mask, axis, at_once), m
    found: tuple[Tensor, Tensor] | None = None
    if axis.all_have(N):
        found = outer_product_mean_of(module, m, own, z, Others(axis, N, mask))
    if found is not None:
        return found
    b = gather(_second(module, m, own), axis, dim=-2, length=N)
    return _plain_outer(module, m, z, own, mask, b), m


def _outer_by_rows(
    module: Any, m: Tensor, z: Tensor, mask: Tensor, axis: Axis, at_once: int
) -> Tensor:  # fmt: skip
    """As `_outer_product_mean`, a few rows of z at a time: the outer products are not kept."""
    own = axis.part(mask, -1)
    b = gathered(_second(module, m, own), axis, -2, mask.shape[-1])
    found, known = z if axis.in_place else torch.empty_like(z), KnownColumns(b, mask)
    for start in range(0, m.shape[-2], at_once):
        length = min(at_once, m.shape[-2] - start)
        some, some_mask = m.narrow(-2, start, length), own.narrow(-1, start, length)
        rows = z.narrow(-3, start, length)
        made = outer_product_mean_of(module, some, some_mask, rows, known)
        new = _plain_outer(module, some, rows, some_mask, mask, b) if made is None else made[0]
        found.narrow(-3, start, length).copy_(new)
    return found


def _second(module: Any, m: Tensor, mask: Tensor) -> Tensor:
    """The projection b of columns of m."""
    b: Tensor = module.linear_2(module.layer_norm(m))
    return b * mask.to(b.dtype)[..., None]


def _plain_outer(
    module: Any, m: Tensor, z: Tensor, own: Tensor, mask: Tensor, b: Tensor
) -> Tensor:  # fmt: skip
    x = module.layer_norm(m)
    a = module.linear_1(x) * own.to(x.dtype)[..., None]
    outer = torch.einsum("...sic,...sje->...ijce", a, b).flatten(-2)
    update = module.linear_out(outer)
    with full_precision(mask):  # counts above 256 are not exact in bfloat16
        shared = torch.einsum("...si,...sj->...ij", own, mask)[..., None] + module.eps
    return added(z, update / shared.to(update.dtype), None)


class KnownColumns:
    """Columns that are all known already; without a gradient.

    Of their projection `[*, S, N, E]` and the mask of the whole MSA `[*, S, N]`.
    """

    def __init__(self, b: Tensor, mask: Tensor) -> None:
        self._b = b
        self.mask = mask

    def gather(self, b: Tensor) -> Tensor:
        """All columns, whichever are given."""
        return self._b.reshape(-1, *self._b.shape[-3:])

    def reduce(self, db: Tensor) -> Tensor:
        """Never asked for: nothing learns from what is known already."""
        raise NotImplementedError("columns that are known have no gradient")

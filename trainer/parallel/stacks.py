"""The stacks and the templates of the model on parts: rows of the MSA and of the pairs.

Each part of a stack is what all the ranks of an axis do together (`msa.py`, `pairs.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from evofeed.trainer.model.evoformer import ExtraMSAStack, MSAStack
from evofeed.trainer.model.template import TemplateEmbedder
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import gather
from evofeed.trainer.parallel.msa import msa_block
from evofeed.trainer.parallel.pairs import pair_block
from evofeed.trainer.parallel.rows import rows_at_once, slices


def msa_stack(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    *, _mask_trans: bool = True,
) -> Any:  # fmt: skip
    """`MSAStack` on the whole."""
    S, N = m.shape[-3:-1]
    m, z = msa_rows(stack, axis, m, axis.part(z, -3), msa_mask, pair_mask, _mask_trans)
    z = gather(z, axis, dim=-3, length=N)
    if not isinstance(stack, ExtraMSAStack):  # of which only the pairs survive
        m = gather(m, axis, dim=-3, length=S)
    return stack._result(m, z)


def msa_rows(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    mask_trans: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of the MSA, which is given whole, and of the pairs, which are given as rows."""
    return stack.through(msa_block, axis.part(m, -3), z, msa_mask, pair_mask, mask_trans, axis)


def template_embedder(
    embedder: TemplateEmbedder, axis: Axis, batch: Mapping[str, Tensor], z: Tensor,
    pair_mask: Tensor, *, _mask_trans: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`TemplateEmbedder` on the whole."""
    T, N = batch["template_aatype"].shape[-2:]
    if not T or not axis.all_have(N):
        return TemplateEmbedder.forward(embedder, batch, z, pair_mask, _mask_trans=_mask_trans)
    z = axis.part(z, -3)
    t = embedder.embed(batch, z, slice(*axis.span(N)))
    mask = pair_mask[..., None, :, :].expand(*t.shape[:-3], N, N)
    t = embedder.template_pair_stack.through(pair_block, t, mask, _mask_trans, axis)
    update = gather(embedder.update(batch, z, t), axis, dim=-3, length=N)
    return (update, *embedder.rows(batch))


def add_templates(
    embedder: TemplateEmbedder, axis: Axis, batch: Mapping[str, Tensor], z: Tensor,
    pair_mask: Tensor, mask_trans: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Adds to this rank's rows of the pairs, in place; rows of the MSA and their mask.

    One template after the other, of which all are kept or their sum.
    """
    T, N = batch["template_aatype"].shape[-2:]
    first, last = axis.span(N)
    at_once = rows_at_once(N * 128 * 12, z.device) or max(1, N)
    mask, stack = pair_mask[..., None, :, :], embedder.template_pair_stack
    made: list[Tensor] = []
    for template in range(T):
        one = {**batch, **_one_template(batch, template)}
        t = z.new_empty(*z.shape[:-3], 1, last - first, N, stack.layer_norm.c_in[0])
        for some in slices(first, last, at_once):
            here = slice(some.start - first, some.stop - first)
            t[..., here, :, :] = embedder.embed(one, z[..., here, :, :], some)
        t = stack.through(pair_block, t, mask, mask_trans, axis)
        if made and embedder.adds_up:
            made[0].add_(t)
        else:
            made.append(t)
        del t
    for some in slices(0, last - first, at_once) if made else ():
        part = torch.cat([t[..., some, :, :] for t in made], dim=-4)
        z[..., some, :, :] += embedder.update(batch, z[..., some, :, :], part)
        del part
    return embedder.rows(batch)


def _one_template(batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The template features of a batch with one template alone."""
    axis = batch["template_aatype"].dim() - 2
    return {
        name: value.narrow(axis, number, 1)
        for name, value in batch.items()
        if name.startswith("template_")
    }

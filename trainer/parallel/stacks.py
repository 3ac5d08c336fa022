"""The stacks and the template embedder on a rank's rows of the MSA and of the pairs.

Their blocks are in `msa.py` and `pairs.py`; all ranks of an axis run each block together.
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
from evofeed.trainer.parallel.rows import chunks, rows_per_chunk


def msa_stack(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    *, _mask_trans: bool = True,
) -> Any:  # fmt: skip
    """`MSAStack.forward`, with full tensors in and out."""
    S, N = m.shape[-3:-1]
    m, z = msa_rows(stack, axis, m, axis.part(z, -3), msa_mask, pair_mask, _mask_trans)
    z = gather(z, axis, dim=-3, length=N)
    if not isinstance(stack, ExtraMSAStack):  # only its pairs are used
        m = gather(m, axis, dim=-3, length=S)
    return stack._result(m, z)


def msa_rows(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    mask_trans: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Rows of the MSA and of the pairs after a stack, from the full MSA and rows of the pairs."""
    return stack.through(msa_block, axis.part(m, -3), z, msa_mask, pair_mask, mask_trans, axis)


def template_embedder(
    embedder: TemplateEmbedder, axis: Axis, batch: Mapping[str, Tensor], z: Tensor,
    pair_mask: Tensor, *, _mask_trans: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`TemplateEmbedder.forward`, with full tensors in and out."""
    T, N = batch["template_aatype"].shape[-2:]
    if not T or not axis.all_nonempty(N):
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
    """Adds the templates to this rank's rows of the pairs, in place; returns their rows of the MSA
    and the mask of those.

    Templates are embedded one by one; all results are stored, or only their sum (`adds_up`).
    """
    T, N = batch["template_aatype"].shape[-2:]
    first, last = axis.span(N)
    chunk_size = rows_per_chunk(N * 128 * 12, z.device) or max(1, N)
    mask, stack = pair_mask[..., None, :, :], embedder.template_pair_stack
    embedded: list[Tensor] = []
    for template in range(T):
        features = {**batch, **_one_template(batch, template)}
        t = z.new_empty(*z.shape[:-3], 1, last - first, N, stack.layer_norm.c_in[0])
        for chunk in chunks(first, last, chunk_size):
            rows = slice(chunk.start - first, chunk.stop - first)
            t[..., rows, :, :] = embedder.embed(features, z[..., rows, :, :], chunk)
        t = stack.through(pair_block, t, mask, mask_trans, axis)
        if embedded and embedder.adds_up:
            embedded[0].add_(t)
        else:
            embedded.append(t)
        del t
    for chunk in chunks(0, last - first, chunk_size) if embedded else ():
        part = torch.cat([t[..., chunk, :, :] for t in embedded], dim=-4)
        z[..., chunk, :, :] += embedder.update(batch, z[..., chunk, :, :], part)
        del part
    return embedder.rows(batch)


def _one_template(batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The template features of a batch, with only one of its templates."""
    axis = batch["template_aatype"].dim() - 2
    return {
        name: value.narrow(axis, number, 1)
        for name, value in batch.items()
        if name.startswith("template_")
    }

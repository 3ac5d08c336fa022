"""`parallelize`: the stacks of a model on shards, in place; the model's own code stays as it is.

Embedders, structure module, heads and losses work on the whole, on every rank alike: 8 % of a
step of one GPU, where a collective would cost as much as it saves. Without a gradient the parts
that hold more than the pairs work a few rows at a time (`rows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from evofeed.trainer.model.activation_checkpointing import checkpointed
from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.model.extra_msa import ExtraMSAStack
from evofeed.trainer.model.structure_module import StructureModule
from evofeed.trainer.model.template import (
    TemplateEmbedder,
    TemplatePairStack,
    build_template_angle_feat,
    build_template_pair_feat,
)
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.checked import checked
from evofeed.trainer.parallel.collectives import gather
from evofeed.trainer.parallel.msa import msa_block
from evofeed.trainer.parallel.pairs import template_block
from evofeed.trainer.parallel.rows import embed_by_rows, rows_at_once, slices, structure_by_rows

__all__ = ["parallelize"]

Model = TypeVar("Model", bound=nn.Module)


def parallelize(model: Model, axis: Axis) -> Model:
    """Lets the ranks of an axis share every stack of `model`, in place, and returns it.

    All of them must call it with the same sample and the same state of the random numbers, and
    get the same results. The *mean* of their gradients is the gradient of one rank's loss.
    Parameters stay whole on every rank, and their names and values as they are.
    """
    axis = checked(axis, next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, MSAStack):
            module.forward = partial(_msa_stack, module, axis)  # type: ignore[method-assign]
        elif type(module) is TemplateEmbedder:
            module.forward = partial(_template_embedder, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, TemplatePairStack):
            module.forward = partial(_template_stack, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, AlphaFold):
            module._embed = partial(embed_by_rows, module)  # type: ignore[method-assign]
        elif isinstance(module, StructureModule):
            structure_by_rows(module)
    return model


def _msa_stack(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    *, _mask_trans: bool = True,
) -> Any:  # fmt: skip
    S, N = m.shape[-3:-1]
    m, z = axis.part(m, -3), axis.part(z, -3)
    for block in stack.blocks:
        m, z = checkpointed(
            msa_block, block, m, z, msa_mask, pair_mask, _mask_trans, axis,
            enabled=stack.checkpointing,
        )  # fmt: skip
    z = gather(z, axis, dim=-3, length=N)
    if not isinstance(stack, ExtraMSAStack):  # of which only the pairs survive
        m = gather(m, axis, dim=-3, length=S)
    return stack._result(m, z)


def _template_stack(
    stack: TemplatePairStack, axis: Axis, t: Tensor, mask: Tensor, *, _mask_trans: bool = True
) -> Tensor:
    if not t.numel():  # no templates: every rank alike
        return TemplatePairStack.forward(stack, t, mask, _mask_trans=_mask_trans)
    N, mask = t.shape[-2], mask.expand(t.shape[:-1])
    t = _template_rows(stack, axis, axis.part(t, -3), mask, _mask_trans)
    return gather(t, axis, dim=-3, length=N)


def _template_rows(
    stack: TemplatePairStack, axis: Axis, t: Tensor, mask: Tensor, mask_trans: bool
) -> Tensor:
    for block in stack.blocks:
        t = checkpointed(
            template_block, block, t, mask, mask_trans, axis, enabled=stack.checkpointing
        )
    return stack.layer_norm(t)  # type: ignore[no-any-return]


def _template_embedder(
    embedder: TemplateEmbedder, axis: Axis, batch: Mapping[str, Tensor], z: Tensor,
    pair_mask: Tensor, *, _mask_trans: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Rows of the pairs; of long chains one template after the other, a few rows at a time."""
    T, N = batch["template_aatype"].shape[-2:]
    if not T or not axis.all_have(N):
        return TemplateEmbedder.forward(embedder, batch, z, pair_mask, _mask_trans=_mask_trans)
    lengths = axis.lengths(N)
    first, last = sum(lengths[: axis.rank]), sum(lengths[: axis.rank + 1])
    mask = pair_mask[..., None, :, :]
    at_once = rows_at_once(N * 88 * 12, z.device)
    template_mask = batch["template_mask"]
    if at_once is None or at_once >= T * N:
        distogram: Any = embedder.distogram
        feat = build_template_pair_feat(
            batch, inf=embedder.inf, rows=slice(first, last), **distogram
        )
        t = embedder.template_pair_embedder(feat)
        mask = mask.expand(*t.shape[:-3], N, N)
        t = _template_rows(embedder.template_pair_stack, axis, t, mask, _mask_trans)
        own = embedder.template_pointwise_att(t, axis.part(z, -3), template_mask)
        return _with_templates(embedder, batch, gather(own, axis, dim=-3, length=N))
    made = []
    for template in range(T):
        one = _one_template(batch, template)
        t = z.new_empty(
            *z.shape[:-3], 1, last - first, N, embedder.template_pair_stack.layer_norm.c_in[0]
        )
        for some in slices(first, last, at_once):
            feat = build_template_pair_feat(
                one,
                inf=embedder.inf,
                rows=some,
                **embedder.distogram,  # type: ignore[arg-type]
            )
            t[..., some.start - first : some.stop - first, :, :] = embedder.template_pair_embedder(
                feat
            )
            del feat
        made.append(_template_rows(embedder.template_pair_stack, axis, t, mask, _mask_trans))
        del t
    own = torch.empty_like(z[..., first:last, :, :])
    for some in slices(first, last, at_once):
        here = slice(some.start - first, some.stop - first)
        part = torch.cat([t[..., here, :, :] for t in made], dim=-4)
        update = embedder.template_pointwise_att(part, z[..., some, :, :], template_mask)
        own[..., here, :, :] = update
        del part, update
    del made
    return _with_templates(embedder, batch, gather(own, axis, dim=-3, length=N))


def _with_templates(
    embedder: TemplateEmbedder, batch: Mapping[str, Tensor], update: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What the embedder returns, from its update of the pairs."""
    there = (torch.sum(batch["template_mask"], dim=-1) > 0).to(update.dtype)
    psi_mask = batch["template_torsion_angles_mask"][..., 2]
    rows = embedder.template_single_embedder(build_template_angle_feat(batch))
    return update * there[..., None, None, None], rows, psi_mask


def _one_template(batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The template features of a batch with one template alone."""
    axis = batch["template_aatype"].dim() - 2
    return {
        name: value.narrow(axis, number, 1)
        for name, value in batch.items()
        if name.startswith("template_")
    }

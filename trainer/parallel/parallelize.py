"""`parallelize`: the stacks of a model on shards, in place; the model's own code stays as it is.

Embedders, structure module, heads and losses work on the whole, on every rank alike: 5 % of a
step, where a collective would cost as much as it saves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from evofeed.trainer.model.activation_checkpointing import checkpointed
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.model.extra_msa import ExtraMSAStack
from evofeed.trainer.model.template import (
    TemplateEmbedder,
    TemplatePairStack,
    build_template_angle_feat,
    build_template_pair_feat,
)
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import gather
from evofeed.trainer.parallel.msa import msa_block
from evofeed.trainer.parallel.pairs import template_block

__all__ = ["parallelize"]

Model = TypeVar("Model", bound=nn.Module)
MOST_FEATURES = 2 << 30
"""Bytes of template features that may lie there at once where no gradient is wanted."""


def parallelize(model: Model, axis: Axis) -> Model:
    """Lets the ranks of an axis share every stack of `model`, in place, and returns it.

    All of them must call it with the same sample and the same state of the random numbers, and
    get the same results. The *mean* of their gradients is the gradient of one rank's loss.
    Parameters stay whole on every rank, and their names and values as they are.
    """
    for module in model.modules():
        if isinstance(module, MSAStack):
            module.forward = partial(_msa_stack, module, axis)  # type: ignore[method-assign]
        elif type(module) is TemplateEmbedder:
            module.forward = partial(_template_embedder, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, TemplatePairStack):
            module.forward = partial(_template_stack, module, axis)  # type: ignore[method-assign]
    return model


def _msa_stack(
    stack: MSAStack, axis: Axis, m: Tensor, z: Tensor, msa_mask: Tensor, pair_mask: Tensor,
    mask_trans: bool = False,
) -> Any:  # fmt: skip
    S, N = m.shape[-3:-1]
    m, z = axis.part(m, -3), axis.part(z, -3)
    for block in stack.blocks:
        m, z = checkpointed(
            msa_block, block, m, z, msa_mask, pair_mask, mask_trans, axis,
            enabled=stack.checkpointing,
        )  # fmt: skip
    z = gather(z, axis, dim=-3, length=N)
    if not isinstance(stack, ExtraMSAStack):  # of which only the pairs survive
        m = gather(m, axis, dim=-3, length=S)
    return stack._result(m, z)


def _template_stack(
    stack: TemplatePairStack, axis: Axis, t: Tensor, mask: Tensor, mask_trans: bool = False
) -> Tensor:
    if not t.numel():  # no templates: every rank alike
        return TemplatePairStack.forward(stack, t, mask, mask_trans)
    N, mask = t.shape[-2], mask.expand(t.shape[:-1])
    t = _template_rows(stack, axis, axis.part(t, -3), mask, mask_trans)
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
    pair_mask: Tensor, mask_trans: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Where no gradient is wanted, the features of a few rows of pairs at a time."""
    T, N = batch["template_aatype"].shape[-2:]
    at_once = MOST_FEATURES // max(1, T * N * 88 * 4) or 1
    if torch.is_grad_enabled() or not T or at_once >= N or axis.size > N:
        return TemplateEmbedder.forward(embedder, batch, z, pair_mask, mask_trans)
    lengths = axis.lengths(N)
    first, last = sum(lengths[: axis.rank]), sum(lengths[: axis.rank + 1])
    rows = [slice(n, min(n + at_once, last)) for n in range(first, last, at_once)]
    made: list[Tensor] = []
    for some in rows:
        feat = build_template_pair_feat(
            batch,
            inf=embedder.inf,
            rows=some,
            **embedder.distogram,  # type: ignore[arg-type]
        )
        made.append(embedder.template_pair_embedder(feat))
        del feat
    t = torch.cat(made, dim=-3)
    del made
    mask = pair_mask[..., None, :, :].expand(*pair_mask.shape[:-2], T, N, N)
    t = _template_rows(embedder.template_pair_stack, axis, t, mask, mask_trans)
    template_mask, own = batch["template_mask"], []
    for some in rows:
        part = t[..., some.start - first : some.stop - first, :, :]
        own.append(embedder.template_pointwise_att(part, z[..., some, :, :], template_mask))
    update = gather(torch.cat(own, dim=-3), axis, dim=-3, length=N)
    update = update * (torch.sum(template_mask, dim=-1) > 0).to(update.dtype)[..., None, None, None]
    psi_mask = batch["template_torsion_angles_mask"][..., 2]
    return update, embedder.template_single_embedder(build_template_angle_feat(batch)), psi_mask

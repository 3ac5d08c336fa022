"""`parallelize`: the stacks of a model on shards, in place; the model's own code stays as it is.

Embedders, structure module, heads and losses work on the whole, on every rank alike: 5 % of a
step, where a collective would cost as much as it saves.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from evofeed.trainer.model.activation_checkpointing import checkpointed
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.model.extra_msa import ExtraMSAStack
from evofeed.trainer.model.template import TemplatePairStack
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import gather
from evofeed.trainer.parallel.msa import msa_block
from evofeed.trainer.parallel.pairs import template_block

__all__ = ["parallelize"]


def parallelize(model: nn.Module, axis: Axis) -> nn.Module:
    """Lets the ranks of an axis share every stack of `model`, in place, and returns it.

    All of them must call it with the same sample and the same state of the random numbers, and
    get the same results. The *mean* of their gradients is the gradient of one rank's loss.
    Parameters stay whole on every rank, and their names and values as they are.
    """
    for module in model.modules():
        if isinstance(module, MSAStack):
            module.forward = partial(_msa_stack, module, axis)  # type: ignore[method-assign]
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
    t = axis.part(t, -3)
    for block in stack.blocks:
        t = checkpointed(
            template_block, block, t, mask, mask_trans, axis, enabled=stack.checkpointing
        )
    return gather(stack.layer_norm(t), axis, dim=-3, length=N)

"""`parallelize`: shards the stacks of a model over ranks, in place, without changes to its code.

Embedders, structure module, heads and losses work on full tensors, the same on every rank: 8 % of
a step of one GPU, where a collective would cost as much as it saves. Without a gradient the parts
that need more memory than the pairs work in chunks of rows (`rows`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.model.structure_module import StructureModule
from evofeed.trainer.model.template import TemplateEmbedder
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.collectives import exchanged, gathered, reduced
from evofeed.trainer.parallel.inference import predict_by_rows
from evofeed.trainer.parallel.rows import chunk_structure_module
from evofeed.trainer.parallel.stacks import msa_stack, template_embedder

Model = TypeVar("Model", bound=nn.Module)
SHAPE = (2, 257, 256, 64)  # of the tensors that test the peer memory: with a shorter last part
TIMES = 3  # each of the memory's two slots at least once
_LOG = logging.getLogger(__name__)


def parallelize(model: Model, axis: Axis) -> Model:
    """Shares every stack of `model` among the ranks of an axis, in place, and returns the model.

    All ranks must call the model with the same sample and the same state of the random number
    generator, and get the same results. The *mean* of their gradients is the gradient of one rank's
    loss. Parameters are not sharded; their names and values stay as they are.

    Evaluated without a gradient, the model holds only this rank's rows of the pairs from its first
    embedder to its heads: the output `pair` is then those rows.
    """
    axis = checked(axis, next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, MSAStack):
            module.forward = partial(msa_stack, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, TemplateEmbedder):
            module.forward = partial(template_embedder, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, AlphaFold):
            module.forward = partial(predict_by_rows, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, StructureModule):
            chunk_structure_module(module, axis)
    return model


def checked(
    axis: Axis, device: torch.device, shape: tuple[int, int, int, int] = SHAPE, times: int = TIMES
) -> Axis:
    """The axis, without its memory (and a warning) if any bit of any exchange through it differs.

    A fault there would corrupt a run without stopping it, so every run tests the memory first.
    All ranks of the axis must call it, and get the same answer. Each kind of exchange is tested
    `times` times with tensors `[B, I, J, C]` of the given `shape`.
    """
    if axis.memory is None or axis.size == 1:
        return axis
    plain = replace(axis, memory=None)
    wrong = torch.zeros((), device=device)
    for call in _calls(axis.rank, device, shape):
        expected = call(plain)
        for result in (call(axis) for _ in range(times)):
            wrong += float(result.shape != expected.shape or not torch.equal(result, expected))
    dist.all_reduce(wrong, group=axis.group)
    if wrong.item():
        _LOG.warning("exchanges through the GPUs' own memory differ from NCCL's: NCCL is used")
        return plain
    return axis


def _calls(
    rank: int, device: torch.device, shape: tuple[int, int, int, int]
) -> Iterator[Callable[[Axis], Tensor]]:
    """Every kind of exchange, of integers, whose sums are exact in any dtype and order."""
    draws = torch.Generator().manual_seed(0)
    numbers = torch.randint(-8, 9, shape, generator=draws).to(device)
    for dtype in (torch.bfloat16, torch.float32):
        x = numbers.to(dtype)
        y = x * (1 + rank)
        for dim, n in ((-3, shape[-3]), (-2, shape[-2])):
            other = -5 - dim
            yield lambda axis: exchanged(axis.part(x, dim), axis, other, dim, n)  # noqa: B023
            yield lambda axis: gathered(axis.part(x, dim), axis, dim, n)  # noqa: B023
            yield lambda axis: reduced(y, axis, dim)  # noqa: B023

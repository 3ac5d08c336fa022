"""`parallelize`: the stacks of a model on shards, in place; the model's own code stays as it is.

Embedders, structure module, heads and losses work on the whole, on every rank alike: 8 % of a
step of one GPU, where a collective would cost as much as it saves. Without a gradient the parts
that hold more than the pairs work a few rows at a time (`rows`).
"""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from torch import nn

from evofeed.trainer.model.alphafold import AlphaFold
from evofeed.trainer.model.evoformer import MSAStack
from evofeed.trainer.model.structure_module import StructureModule
from evofeed.trainer.model.template import TemplateEmbedder, TemplatePairStack
from evofeed.trainer.parallel.axis import Axis
from evofeed.trainer.parallel.checked import checked
from evofeed.trainer.parallel.inference import predict_by_rows
from evofeed.trainer.parallel.rows import structure_by_rows
from evofeed.trainer.parallel.stacks import msa_stack, template_embedder, template_stack

Model = TypeVar("Model", bound=nn.Module)


def parallelize(model: Model, axis: Axis) -> Model:
    """Lets the ranks of an axis share every stack of `model`, in place, and returns it.

    All of them must call it with the same sample and the same state of the random numbers, and
    get the same results. The *mean* of their gradients is the gradient of one rank's loss.
    Parameters stay whole on every rank, and their names and values as they are.

    Evaluated without a gradient, the model keeps nothing but this rank's rows of the pairs from
    its first embedder to its heads: `pair` are then those.
    """
    axis = checked(axis, next(model.parameters()).device)
    for module in model.modules():
        if isinstance(module, MSAStack):
            module.forward = partial(msa_stack, module, axis)  # type: ignore[method-assign]
        elif type(module) is TemplateEmbedder:
            module.forward = partial(template_embedder, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, TemplatePairStack):
            module.forward = partial(template_stack, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, AlphaFold):
            module.forward = partial(predict_by_rows, module, axis)  # type: ignore[method-assign]
        elif isinstance(module, StructureModule):
            structure_by_rows(module, axis)
    return model

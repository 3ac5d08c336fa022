"""Floating-point operations of a training step, counted on the model itself.

The plain model runs once on fake tensors, which have shapes and no values, under
torch's flop counter: matrix products count two per multiply-add,
other operators count zero. Recomputation by activation checkpointing is not
counted, as usual for model FLOP utilisation (MFU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from evofeed.protein.features import BATCH
from evofeed.trainer.model.constants import table

_PER_RECYCLE = {feature.name for feature in BATCH if feature.stage == "recycle"}


def count_step_flops(
    build: Callable[[], nn.Module], batch: Mapping[str, Tensor]
) -> dict[str, float]:
    """FLOPs of a forward pass and of a forward and backward pass, for a batch's shapes.

    A step with R recycles costs `(R - 1) * forward + forward_backward`. The plain model is built
    with fake tensors.
    """
    with torch.device("meta"):  # drawing initial weights would need values
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True):  # the model's constant tables are real
        weights = {n: torch.empty(p.shape, requires_grad=True) for n, p in model.named_parameters()}
        inputs = {n: torch.empty(value.shape, dtype=value.dtype) for n, value in batch.items()}
        if "msa_feat" in batch:  # one pass is enough: all recycles cost the same
            inputs |= {name: inputs[name][:1] for name in _PER_RECYCLE & inputs.keys()}
        with FlopCounterMode(display=False) as counter:
            outputs = functional_call(model, weights, (inputs,))
            forward = float(counter.get_total_flops())
            leaves = [x for x in tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
            torch.autograd.backward(torch.stack([x.sum().float() for x in leaves]).sum())
    table.cache_clear()  # drops the fake tensors that it cached
    return {
        "forward": forward,
        "forward_backward": float(counter.get_total_flops()),
    }

"""Floating-point operations of a training step, counted on the model itself.

The plain model runs once on fake tensors, which have shapes and no values, under
torch's flop counter: matrix products count two per multiply-add,
everything else nothing. Recomputation by activation checkpointing is not
counted, as usual for model FLOP utilisation (MFU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from evofeed.protein.features import BATCH
from evofeed.trainer.model.constants import table


def count_step_flops(
    build: Callable[[], nn.Module], batch: Mapping[str, Tensor]
) -> dict[str, float]:
    """FLOPs of one pass without gradient and of one with its backward, for a batch's shapes.

    A step with R recycles costs `(R - 1) * forward + forward_backward`.

    Args:
        build: makes the plain model, of fake tensors here.
    """
    with torch.device("meta"):  # drawing initial weights would need values
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True):  # the model's constant tables are real
        weights = {n: torch.empty(p.shape, requires_grad=True) for n, p in model.named_parameters()}
        inputs = {
            name: _one_recycle(name, torch.empty(value.shape, dtype=value.dtype), batch)
            for name, value in batch.items()
        }
        with FlopCounterMode(display=False) as counter:
            outputs = functional_call(model, weights, (inputs,))
            forward = float(counter.get_total_flops())
            torch.autograd.backward(_sum_of_outputs(outputs))
    table.cache_clear()  # what it made meanwhile is fake
    return {
        "forward": forward,
        "forward_backward": float(counter.get_total_flops()),
    }


def _one_recycle(name: str, value: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """One pass is enough: the recycles before are the same forward again."""
    per_recycle = {feature.name for feature in BATCH if feature.stage == "recycle"}
    return value[:1] if name in per_recycle and "msa_feat" in batch else value


def _sum_of_outputs(outputs: Any) -> Tensor:
    """Something to differentiate that reaches every output which has a gradient."""
    if isinstance(outputs, Tensor):
        return outputs.sum() if outputs.requires_grad else torch.zeros(())
    entries = outputs.values() if isinstance(outputs, Mapping) else outputs
    parts = [_sum_of_outputs(entry) for entry in entries]
    return torch.stack([part.float() for part in parts]).sum()

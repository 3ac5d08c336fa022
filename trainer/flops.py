"""Floating-point operations of a training step, counted on the model itself.

The plain model runs once on the meta device, where tensors have shapes and no
values, under torch's flop counter: matrix products count two per multiply-add,
everything else nothing. Recomputation by activation checkpointing is not
counted, as usual for model FLOP utilisation (MFU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

PEAK_FLOPS: dict[str, dict[str, float]] = {
    "H200": {"bf16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "H100": {"bf16": 989e12, "tf32": 494.7e12, "fp32": 67e12},
    "A100": {"bf16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
}
"""Dense peak by GPU name and precision, from NVIDIA's data sheets."""


def count_step_flops(
    build: Callable[[], nn.Module], batch: Mapping[str, Tensor]
) -> dict[str, float]:
    """FLOPs of one pass without gradient and of one with its backward, for a batch's shapes.

    A step with R recycles costs `(R - 1) * forward + forward_backward`.

    Args:
        build: makes the plain model; called under the meta device.
        batch: any batch of the shapes to count for.
    """
    with torch.device("meta"):
        model = build()
    meta = {name: torch.empty_like(value, device="meta") for name, value in batch.items()}
    if "msa_feat" in meta:  # one pass only: the recycles before are the same forward again
        length = meta["msa_feat"].shape[0]
        meta = {k: _one_recycle(k, v, length) for k, v in meta.items()}
    with torch.device("meta"):
        with FlopCounterMode(display=False) as forward, torch.no_grad():
            model(meta)
        with FlopCounterMode(display=False) as both:
            torch.autograd.backward(_sum_of_outputs(model(meta)))
    return {
        "forward": float(forward.get_total_flops()),
        "forward_backward": float(both.get_total_flops()),
    }


def peak_flops(device_name: str, precision: str) -> float | None:
    """Peak of a GPU by its name, or None if the table does not know it."""
    for name, peaks in PEAK_FLOPS.items():
        if name in device_name:
            return peaks.get(precision)
    return None


def _one_recycle(name: str, value: Tensor, length: int) -> Tensor:
    from evofeed.features import BATCH

    per_recycle = {feature.name for feature in BATCH if feature.stage == "recycle"}
    return value[:1] if name in per_recycle and value.shape[:1] == (length,) else value


def _sum_of_outputs(outputs: Any) -> Tensor:
    """Something to differentiate that reaches every output which has a gradient."""
    if isinstance(outputs, Tensor):
        return outputs.sum() if outputs.requires_grad else torch.zeros((), device="meta")
    entries = outputs.values() if isinstance(outputs, Mapping) else outputs
    parts = [_sum_of_outputs(entry) for entry in entries]
    return torch.stack([part.float() for part in parts]).sum()

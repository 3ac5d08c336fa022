"""Is what the loader makes on a GPU right? Parts of `loader_gpu.py` that compare, not time."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

Batch = dict[str, torch.Tensor]


def compare_devices(
    dataset: Dataset, config: LoaderConfig, device: str, count: int
) -> dict[str, Any]:
    """The same batches made on the CPU and on the device."""
    worst: dict[str, float] = {}
    integers = 0
    options: dict[str, Any] = {"reader": "thread", "seed": 3}
    with (
        FeatureLoader(dataset, config, device="cpu", **options) as one,
        FeatureLoader(dataset, config, device=device, **options) as two,
    ):
        for _, here, there in zip(range(count), one, two, strict=False):
            for name, want in here.items():
                got = there[name].cpu()
                assert got.shape == want.shape, name
                if not want.is_floating_point() or name.endswith(("mask", "exists")):
                    assert torch.equal(got, want), f"{name} differs between the devices"
                    integers += 1
                    continue
                known = want_mask(here, name, want)
                error = (got - want).abs()[known].max().item() if known.any() else 0.0
                worst[name] = max(worst.get(name, 0.0), error)
                limit = (
                    1e-4 if "sin_cos" in name or "positions" in name or "frames" in name else 1e-5
                )
                limit = max(limit, 1e-5 * want.abs().max().item())
                assert error <= limit, f"{name} differs by {error}"
    return {"batches": count, "integer_tensors_equal": integers, "largest_float_difference": worst}


def want_mask(batch: Batch, name: str, value: torch.Tensor) -> torch.Tensor:
    """Where a torsion is defined; everywhere for other features."""
    masks = {
        "chi_angles_sin_cos": "chi_mask",
        "template_torsion_angles_sin_cos": "template_torsion_angles_mask",
        "template_alt_torsion_angles_sin_cos": "template_torsion_angles_mask",
    }
    if name not in masks:
        return torch.ones_like(value, dtype=torch.bool)
    return (batch[masks[name]] == 1)[..., None].expand(value.shape)


def hidden_syncs(dataset: Dataset, config: LoaderConfig, count: int) -> str:
    """Whether making a batch ever waits for the GPU: `none`, or where it does."""
    with FeatureLoader(dataset, config, device="cuda", reader="thread") as loader:
        next(iter(loader))  # tables are copied to the device once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with FeatureLoader(dataset, config, device="cuda", reader="thread") as loader:
            for _ in zip(range(count), loader, strict=False):
                pass
    except RuntimeError:
        return traceback.format_exc()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"

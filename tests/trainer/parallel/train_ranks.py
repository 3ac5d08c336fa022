"""A run of four ranks: two steps in pairs, then two more on all ranks together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.train import train

STEPS = 4


def config(validate_every: int = 0, **changes: Any) -> TrainConfig:
    """The tiny preset, smaller; each sample's gradient is clipped before it counts."""
    model = {"evoformer": {"no_blocks": 1}, "structure_module": {"no_blocks": 2}}
    loader = {"crop_size": 23, "max_msa_clusters": 7, "max_extra_msa": 11, "max_templates": 1}
    return PRESETS["tiny"]().train.replace(
        model=model, loader=loader, profile_steps=0, checkpoint_every=0,
        validate_every=validate_every,
        optim=OptimConfig(warmup_steps=2, learning_rate=2e-3, clip="per_example"), **changes,
    )  # fmt: skip


def train_shared(dataset: str, out: Path) -> None:
    """Two samples a step: one for each pair of ranks, then one after the other for all four."""
    train(config(axial=2, steps=STEPS // 2), dataset, out=out, device="cpu")
    train(
        config(axial=4, accumulate=2, steps=STEPS, validate_every=STEPS), dataset, out=out,
        resume=True, validation=dataset, device="cpu",
    )  # fmt: skip

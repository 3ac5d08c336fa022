"""A rank that trains the stand-in twice: with its first step run for its launches first, and not.

Steps take the way of recorded ones; a CPU records nothing, so each runs eagerly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error
from torch import Tensor

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.run import loop, train
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.graphs import Replay


class RecordingLoop(loop.Loop):
    """Takes a CPU for a GPU."""

    def __init__(self, *parts: Any, **named: Any) -> None:
        super().__init__(*parts, **named)
        self._replay = self._recorder()
        self._replay.why_not = "a CPU"


class Noted(Replay):
    """Notes the gradients that running ahead left, or does not run ahead."""

    ahead = True
    left: list[float]

    def compile_ahead(self, batch: dict[str, Tensor], device: torch.device) -> None:
        if self.ahead:
            super().compile_ahead(batch, device)
            Noted.left.append(sum(float(p.grad.abs().sum()) for p in PARAMETERS))


PARAMETERS: list[Any] = []


def train_both_ways(folder: Path) -> None:
    """The first rank prints what both runs came to, and what each rank's running ahead left."""
    train.Loop = RecordingLoop  # type: ignore[misc]
    loop.Replay = Noted  # type: ignore[misc]
    found: dict[str, Any] = {}
    with join_world("cpu") as world:
        for name in ("ahead", "not"):
            Noted.ahead, Noted.left = name == "ahead", []
            losses, weights = _trained(world, folder / name)
            found[name] = {"losses": losses, "weights": weights}
            found[name]["left"] = world.collect(Noted.left)
    if world.is_first:
        print(json.dumps(found))


def _trained(world: World, out: Path) -> tuple[list[float], list[Any]]:
    config = TrainConfig(
        steps=6, accumulate=2, precision="fp32", kernels="fused", checkpoint_every=0,
        profile_steps=0, optim=OptimConfig(warmup_steps=2, learning_rate=1e-2),
    )  # fmt: skip
    loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
    model = TinyModel(seed=world.rank)
    PARAMETERS[:] = model.parameters()
    result = train.run(config, model, squared_error, loader, world=world, out=out)
    return result.losses, [p.tolist() for p in model.parameters()]

"""Trains the stand-in model in a process of its own; under torchrun every rank does its share."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.run.distributed import join_world
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.train import run


def train_standin(out: Path, steps: int, accumulate: int, clip: str) -> TrainResult:
    """This process's share of a run of the stand-in model, going on from its last checkpoint."""
    config = TrainConfig(
        steps=steps, accumulate=accumulate, precision="fp32", kernels="torch", checkpoint_every=1,
        profile_steps=0, optim=OptimConfig(warmup_steps=2, learning_rate=1e-2, clip=clip),
    )  # fmt: skip
    with join_world("cpu") as world:
        loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        model = TinyModel(seed=world.rank)  # the first rank's weights count
        return run(config, model, squared_error, loader, world=world, out=out, resume=True)


def print_standin(out: Path, steps: int, accumulate: int, clip: str) -> None:
    """As `train_standin`; the first rank prints the step it began at and the losses."""
    result = train_standin(out, steps, accumulate, clip)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"first": result.first_step, "losses": result.losses}), flush=True)

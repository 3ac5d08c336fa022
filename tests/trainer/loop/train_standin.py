"""Trains the stand-in model in its own process: train_standin.py OUT STEPS ACCUMULATE CLIP.

Under torchrun every rank does its share. Prints the step it began at and the losses.
"""

import json
import os
import sys
from pathlib import Path

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.run.distributed import join_world
from evofeed.trainer.run.result import TrainResult
from evofeed.trainer.run.train import run

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error


def train_standin(out: Path, steps: int, accumulate: int, clip: str) -> TrainResult:
    """This process's share of a run of the stand-in model, going on from its last checkpoint."""
    config = TrainConfig(
        steps=steps,
        accumulate=accumulate,
        precision="fp32",
        kernels="torch",
        checkpoint_every=1,
        profile_steps=0,
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2, clip=clip),
    )
    with join_world("cpu") as world:
        loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        model = TinyModel(seed=world.rank)  # the first rank's weights count
        return run(config, model, squared_error, loader, world=world, out=out, resume=True)


def print_standin(out: Path, steps: int, accumulate: int, clip: str) -> None:
    """As `train_standin`; the first rank prints."""
    result = train_standin(out, steps, accumulate, clip)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"first": result.first_step, "losses": result.losses}), flush=True)


if __name__ == "__main__":
    print_standin(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

"""Trains the stand-in model in its own process: train_standin.py OUT STEPS ACCUMULATE CLIP.

Under torchrun every rank does its share. Prints the step it began at and the losses.
"""

import json
import sys
from pathlib import Path

from loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.trainer.config import TrainConfig
from evofeed.trainer.distributed import join_world
from evofeed.trainer.optim import OptimConfig
from evofeed.trainer.train import run


def main() -> None:
    out, steps, accumulate = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config = TrainConfig(
        steps=steps,
        accumulate=accumulate,
        precision="fp32",
        kernels="torch",
        checkpoint_every=1,
        profile_steps=0,
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2, clip=sys.argv[4]),
    )
    with join_world("cpu") as world:
        loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        result = run(
            config, TinyModel(seed=world.rank), squared_error, loader, world=world, out=out,
            resume=True,
        )  # fmt: skip
        if world.is_first:
            print(json.dumps({"first": result.first_step, "losses": result.losses}), flush=True)


if __name__ == "__main__":
    main()

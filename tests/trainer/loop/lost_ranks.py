"""Ranks of which one overflows float16 alone, or dies in the middle of a step."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.loop import Loop


def _loop(world: World, out: Path, clip: str = "global", **changes: object) -> Loop:
    config = TrainConfig(
        steps=8, checkpoint_every=0,
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2, clip=clip),
        **changes,  # type: ignore[arg-type]
    )  # fmt: skip

    def loss(
        outputs: dict[str, Tensor], batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        error, terms = squared_error(outputs, batch)
        return error * 2.0 ** (7 * (world.rank == 1)), terms  # too large for the first scales

    loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
    return Loop(config, TinyModel(), loss, loader, out=out, world=world)


def overflow_on_one(out: Path, clip: str, overlap: bool) -> None:
    """Prints of every rank: overflows, scale, updates made, and its weights' sum."""
    with join_world("cpu") as world:
        loop = _loop(world, out, clip, precision="fp16", overlap=overlap)
        result = loop.run()
        scale = loop.optimizer.scale
        assert scale is not None
        found = world.collect(
            {
                "overflows": result.overflows, "skipped": result.skipped,
                "scale": scale.state.tolist(), "updates": loop.optimizer.updates.item(),
                "weights": loop.optimizer.param.double().sum().item(),
            }
        )  # fmt: skip
    if world.is_first:
        print(json.dumps(found))


def die_on_one(out: Path) -> None:
    """The second rank is killed in its third step; the first prints what it is told."""
    try:
        with join_world("cpu") as world:
            loop = _loop(world, out, precision="fp32")
            step = loop.step

            def fatal(number: int) -> None:
                if number == 2 and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(number)

            loop.step = fatal  # type: ignore[method-assign]
            loop.run()
    except TrainerError as error:
        print(error)

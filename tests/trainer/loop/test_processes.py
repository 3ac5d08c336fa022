"""The loop in several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.trainer.forked import run_ranks
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.run.checkpoint import CHECKPOINTS, newest_checkpoint
from evofeed.trainer.run.distributed import join_world
from evofeed.trainer.run.train import run


def train_standin(out: Path, accumulate: int) -> None:
    """This process's share of a run of the stand-in model; each sample's gradient is clipped."""
    config = TrainConfig(
        steps=12, accumulate=accumulate, precision="fp32", kernels="torch", checkpoint_every=1,
        profile_steps=0,
        optim=OptimConfig(warmup_steps=2, learning_rate=1e-2, clip="per_example"),
    )  # fmt: skip
    with join_world("cpu") as world:
        loader = TinyLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        model = TinyModel(seed=world.rank)  # the first rank's weights count
        run(config, model, squared_error, loader, world=world, out=out)


@pytest.mark.slow
def test_two_ranks_train_the_same_model_as_one(tmp_path: Path) -> None:
    train_standin(tmp_path / "one", 4)
    run_ranks(2, train_standin, tmp_path / "two", 2, folder=tmp_path)
    one, two = (read_steps(tmp_path / name) for name in ("one", "two"))
    # Adam and clipping hide a gradient of the wrong size: its norm does not.
    for name, near in (("loss", 1e-5), ("norm", 1e-4)):
        assert [line[name] for line in two] == pytest.approx([line[name] for line in one], rel=near)
    alone, together = (newest_checkpoint(tmp_path / name / CHECKPOINTS) for name in ("one", "two"))
    assert alone is not None and together is not None
    for file in ("model", "ema"):
        for name, weight in alone.tensors(file).items():
            torch.testing.assert_close(together.tensors(file)[name], weight, rtol=1e-4, atol=1e-6)

"""The loop in processes of its own: several ranks, and death at any moment."""

from __future__ import annotations

import json
import os
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.forked import fork, run_ranks
from tests.trainer.loop.loop_standin import TinyLoader, TinyModel, squared_error

from evofeed.trainer.config import OptimConfig, TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.run.checkpoint import CHECKPOINTS, newest_checkpoint
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


def _last(printed: str) -> dict[str, Any]:
    return json.loads(printed.splitlines()[-1])


@pytest.mark.slow
def test_two_ranks_train_the_same_model_as_one(tmp_path: Path) -> None:
    """Each of them a sample's gradient clipped; `test_train.py` has a mean that is clipped."""
    ranks, steps, clip = 2, 12, "per_example"
    alone = train_standin(tmp_path / "one", steps, 4, clip)
    arguments = (tmp_path / "several", steps, 4 // ranks, clip)
    several = _last(run_ranks(ranks, print_standin, *arguments, folder=tmp_path))
    assert several["losses"] == pytest.approx(alone.losses, rel=1e-5)
    # Adam and clipping hide a gradient of the wrong size: its norm does not.
    ours, theirs = (
        [line["norm"] for line in read_steps(tmp_path / name)] for name in ("several", "one")
    )
    assert len(ours) == steps and ours == pytest.approx(theirs, rel=1e-4)
    one, other = (newest_checkpoint(tmp_path / name / CHECKPOINTS) for name in ("one", "several"))
    assert one is not None and other is not None
    for file in ("model", "ema"):
        for name, weight in one.tensors(file).items():
            torch.testing.assert_close(other.tensors(file)[name], weight, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_killed_at_any_moment_a_run_continues_from_a_whole_checkpoint(tmp_path: Path) -> None:
    expected = train_standin(tmp_path / "whole", 40, 1, "global").losses
    for attempt in range(20):
        deaths, last = _killed_again_and_again(tmp_path / f"killed{attempt}")
        assert last["losses"] == expected[last["first"] :]
        if deaths:
            return
    pytest.fail("every run was over before it could be killed")


def _killed_again_and_again(out: Path) -> tuple[int, dict[str, Any]]:
    """How often a run was killed, and what it printed when it came to its end."""
    deaths = 0
    for delay in (0.0, 0.013, 0.031, 0.002):
        before = newest_checkpoint(out / CHECKPOINTS)
        log = out.with_name(f"{out.name}.{deaths}.log")
        process = fork(print_standin, out, 40, 1, "global", log=log)
        _wait_for_a_newer(out / CHECKPOINTS, before, process)
        time.sleep(delay)
        process.kill()
        process.join()
        assert newest_checkpoint(out / CHECKPOINTS) is not None, log.read_text()
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0, log.read_text()
            return deaths, _last(log.read_text())
        deaths += 1
    return deaths, _last(run_ranks(1, print_standin, out, 40, 1, "global", folder=out))


def _wait_for_a_newer(folder: Path, before: Any, process: ForkServerProcess) -> None:
    deadline = time.monotonic() + 240
    names = {before.path.name} if before else set()
    while time.monotonic() < deadline and process.is_alive():
        if {path.name for path in folder.glob("step_*")} - names:
            return
        time.sleep(0.002)

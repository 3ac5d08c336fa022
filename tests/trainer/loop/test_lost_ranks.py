"""What happens to all ranks when one overflows, or dies."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.forked import fork, free_port, run_ranks
from tests.trainer.loop.loop_standin import FAST, squared_error, standin_loop
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.loop import Loop


def _loop(world: World, out: Path, **changes: Any) -> Loop:
    def loss(outputs: Any, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        error, terms = squared_error(outputs, batch)
        return error * 2.0 ** (7 * (world.rank == 1)), terms  # too large for the first scales

    return standin_loop(out, 8, world=world, loss=loss, **changes)


def overflow_on_one(out: Path, clip: str) -> None:
    """Prints of every rank: overflows, scale, updates made, and its weights' sum."""
    with join_world("cpu") as world:
        loop = _loop(world, out, optim=replace(FAST, clip=clip), precision="fp16")
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
            loop = _loop(world, out)
            step = loop.step

            def fatal(number: int) -> None:
                if number == 2 and world.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(number)

            loop.step = fatal  # type: ignore[method-assign]
            loop.run()
    except TrainerError as error:
        print(error)


@pytest.mark.parametrize("clip", ["global", "per_example"])
def test_an_overflow_on_one_rank_halves_the_scale_of_all(tmp_path: Path, clip: str) -> None:
    """The second rank's loss is 128 times the first's, which never overflows."""
    printed = run_ranks(2, overflow_on_one, tmp_path / "run", clip, folder=tmp_path)
    one, other = json.loads(printed.splitlines()[-1])
    assert one == other
    times = len(one["overflows"])
    assert one["overflows"] == list(range(times)) and 1 < times < 8 and one["skipped"] == []
    assert one["scale"] == [2.0 ** (16 - times), 8 - times] and one["updates"] == 8 - times


def test_a_rank_that_dies_ends_the_others_in_seconds_with_what_to_do(tmp_path: Path) -> None:
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    first, second = (
        fork(die_on_one, tmp_path / "run", log=log, **world, RANK=str(rank))
        for rank, log in enumerate(logs)
    )
    second.join(120)
    died = time.monotonic()
    first.join(60)
    assert (first.exitcode, second.exitcode) == (0, -signal.SIGKILL), logs[0].read_text()
    assert time.monotonic() - died < 30
    (said,) = [line for line in logs[0].read_text().splitlines() if "rank 0 of 2" in line]
    assert "another rank has ended or does not answer (" in said and "--resume" in said
    assert "gloo" not in said and "pytorch" not in said  # no line of somebody's sources


def test_a_broken_variable_of_torchrun_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_PORT", "LOCAL_RANK", "RANK", "WORLD_SIZE"):  # the last is asked first
        monkeypatch.setenv(name, "two")
        refused = pytest.raises(TrainerError, match=f"{name} is 'two' and must be a whole number")
        with refused, join_world("cpu"):
            pass
        monkeypatch.delenv(name)

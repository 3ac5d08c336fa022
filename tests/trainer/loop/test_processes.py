"""The loop in processes: what happens when one overflows, dies or hangs.

That two ranks train what one does is in `test_train.py` and `parallel/test_parallelize.py`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.forked import fork, free_port, run_ranks
from tests.trainer.loop.loop_standin import FAST, TinyLoader, standin_loop
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.run.distributed import World, join_world
from evofeed.trainer.run.loop import Loop


def _loop(world: World, out: Path, **changes: Any) -> Loop:
    """The second rank's loss is too large for the first scales."""
    return standin_loop(out, 8, world=world, size=2.0 ** (7 * (world.rank == 1)), **changes)


def overflow_on_one(out: Path, clip: str) -> None:
    """Prints of every rank: overflows, scale, updates made, and its weights' sum."""
    with join_world("cpu") as world:
        loop = _loop(world, out, optim=replace(FAST, clip=clip), precision="fp16")
        result = loop.run()
        scale = loop.optimizer.scale
        assert scale is not None
        by_rank = world.collect(
            {
                "overflows": result.overflows, "skipped": result.skipped,
                "scale": scale.state.tolist(), "updates": loop.optimizer.updates.item(),
                "weights": loop.optimizer.param.double().sum().item(),
            }
        )  # fmt: skip
    if world.is_first:
        print(json.dumps(by_rank))


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
    first, second = json.loads(printed.splitlines()[-1])
    assert first == second
    times = len(first["overflows"])
    assert first["overflows"] == list(range(times)) and 1 < times < 8 and first["skipped"] == []
    assert first["scale"] == [2.0 ** (16 - times), 8 - times] and first["updates"] == 8 - times


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


class StuckLoader(TinyLoader):
    """Never gives its fourth batch on the second of two ranks."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for number, batch in enumerate(super().__iter__()):
            while number == 3 and self.rank == 1:
                time.sleep(0.01)
            yield batch


def hang(out: Path) -> None:
    with join_world("cpu") as world:
        loader = StuckLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        standin_loop(out, 50, loader=loader, world=world, hang_seconds=3.0).run()


def test_a_run_that_hangs_ends_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):  # both end with exit code 1
        run_ranks(2, hang, tmp_path / "run", folder=tmp_path)
    first, second = ((tmp_path / f"rank{rank}.log").read_text() for rank in range(2))
    assert second.startswith("Timeout (0:00:03)") and "in __iter__" in second
    assert "in sync_grad" in first or "another rank has ended" in first


def test_a_run_of_short_steps_is_let_be_and_0_watches_nothing(tmp_path: Path) -> None:
    for number, seconds in enumerate((5.0, 0.0)):
        result = standin_loop(tmp_path / str(number), 5, hang_seconds=seconds).run()
        assert result.step == 5

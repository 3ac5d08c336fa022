"""A run in which nothing moves says where each thread is, and ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.trainer.forked import fork, run_ranks
from tests.trainer.loop.loop_standin import TinyLoader, standin_loop

from evofeed.trainer.run.distributed import join_world


class StuckLoader(TinyLoader):
    """Never gives its fourth batch on the second of two ranks, or where there is but one."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number, batch in enumerate(super().__iter__()):
            while number == 3 and self.rank == self.world_size - 1:
                time.sleep(0.01)
            yield batch


def hang(out: Path) -> None:
    with join_world("cpu") as world:
        loader = StuckLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        standin_loop(out, 50, loader=loader, world=world, hang_seconds=3.0).run()


@pytest.mark.system
def test_a_run_that_hangs_ends_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    process = fork(hang, tmp_path / "run", log=tmp_path / "log")
    process.join(100)
    assert process.exitcode == 1
    said = (tmp_path / "log").read_text()
    assert said.startswith("Timeout (0:00:03)") and "in __iter__" in said


@pytest.mark.system
def test_of_two_ranks_each_says_what_it_waits_for(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):  # both end with exit code 1
        run_ranks(2, hang, tmp_path / "run", folder=tmp_path)
    first, second = ((tmp_path / f"rank{rank}.log").read_text() for rank in range(2))
    assert "in __iter__" in second
    assert "in sync_grad" in first or "another rank has ended" in first


def test_a_run_of_short_steps_is_let_be_and_0_watches_nothing(tmp_path: Path) -> None:
    for number, seconds in enumerate((5.0, 0.0)):
        result = standin_loop(tmp_path / str(number), 5, hang_seconds=seconds).run()
        assert result.step == 5

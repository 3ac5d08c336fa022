"""A run in which nothing moves writes down why, and ends."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tests.trainer.forked import run_ranks
from tests.trainer.loop.loop_standin import TinyLoader, standin_loop

from evofeed.base.run_files import HANGS
from evofeed.trainer.run.checkpoint import CHECKPOINTS, newest_checkpoint
from evofeed.trainer.run.distributed import join_world
from evofeed.trainer.run.watchdog import Watchdog


class StuckLoader(TinyLoader):
    """Gives its fourth batch only when it is written down that the run hangs."""

    reports: Sequence[Path] = ()

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number, batch in enumerate(super().__iter__()):
            while number == 3 and not all(report.exists() for report in self.reports):
                time.sleep(0.01)
            yield batch


def test_a_run_that_hangs_says_where_and_stops_with_a_checkpoint(tmp_path: Path) -> None:
    loader = StuckLoader()
    report = tmp_path / HANGS / "step_00000003.rank0.json"
    loader.reports = [report]
    result = standin_loop(tmp_path, 50, loader=loader, hang_factor=1.0, hang_seconds=1.0).run()
    assert result.stopped_by == "SIGTERM"
    assert 4 <= result.step < 50
    found = newest_checkpoint(tmp_path / CHECKPOINTS)
    assert found is not None
    assert found.step == result.step
    assert "test_watchdog.py" in report.with_suffix(".txt").read_text()
    facts = json.loads(report.read_text())
    assert facts["step"] == 3
    assert facts["seconds_without_a_step"] >= facts["limit"] >= 1.0
    assert "position" in facts["loader"]["state"]


def hang_on_the_second_rank(out: Path) -> None:
    """The second rank has no batch while the first waits for its gradient."""
    with join_world("cpu") as world:
        loader = StuckLoader(rank=world.rank, world_size=world.size, per_epoch=24)
        if world.rank == 1:
            loader.reports = [
                out / HANGS / f"step_00000003.rank{rank}.json" for rank in range(world.size)
            ]
        loop = standin_loop(out, 50, loader=loader, world=world, hang_factor=1.0, hang_seconds=3.0)
        print(loop.run().stopped_by, loop.result.step)


def test_all_ranks_write_what_they_did_when_one_hangs_and_stop_after_the_same_step(
    tmp_path: Path,
) -> None:
    out = tmp_path / "run"
    run_ranks(2, hang_on_the_second_rank, out, folder=tmp_path)
    stacks = [(out / HANGS / f"step_00000003.rank{rank}.txt").read_text() for rank in range(2)]
    assert "overlap.py" in stacks[0] and "in __iter__" not in stacks[0]  # waits for the other
    assert "in __iter__" in stacks[1] and "overlap.py" not in stacks[1]  # waits for its data
    ends = [(tmp_path / f"rank{rank}.log").read_text().split()[-2:] for rank in range(2)]
    assert ends[0] == ends[1] and ends[0][0] == "SIGTERM"
    found = newest_checkpoint(out / CHECKPOINTS)
    assert found is not None and found.step == int(ends[0][1])


def test_a_process_that_cannot_stop_is_ended(tmp_path: Path) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with Watchdog(tmp_path, 2, factor=1.0, least=0.2, grace=0.2, end=end):
            assert ended.wait(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert codes == [1]
    assert (tmp_path / HANGS / "step_00000000.rank2.txt").is_file()


def test_the_limit_follows_the_median_step_and_a_beat_keeps_it_away(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path, 0, factor=10.0, least=0.5)
    dog._seconds.extend([0.2, 0.2, 9.0])
    assert dog.limit == 2.0
    with Watchdog(tmp_path, 0, factor=0.0, least=0.01):
        time.sleep(0.05)
    assert not (tmp_path / HANGS).exists()

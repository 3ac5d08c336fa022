"""What happens to all ranks when one overflows, or dies."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.trainer.forked import fork, free_port, run_ranks
from tests.trainer.loop.lost_ranks import die_on_one, overflow_on_one

from evofeed.base.errors import TrainerError
from evofeed.trainer.run.distributed import join_world


@pytest.mark.parametrize(
    ("clip", "overlap"), [("global", False), ("global", True), ("per_example", False)]
)
def test_an_overflow_on_one_rank_halves_the_scale_of_all(
    tmp_path: Path, clip: str, overlap: bool
) -> None:
    """The second rank's loss is 128 times the first's, which never overflows."""
    printed = run_ranks(2, overflow_on_one, tmp_path / "run", clip, overlap, folder=tmp_path)
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


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"])
def test_a_broken_variable_of_torchrun_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "two")
    refused = pytest.raises(TrainerError, match=f"{name} is 'two' and must be a whole number")
    with refused, join_world("cpu"):
        pass

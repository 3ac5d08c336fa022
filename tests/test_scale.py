"""The simulator behind docs/scale.md on cases with known answers, and the page itself."""

from __future__ import annotations

import json

import pytest
from benchmarks.scale import page
from benchmarks.scale.costs import ASSUMED, Loader, Stage, Storage, extrapolated, mean_gradient
from benchmarks.scale.simulator import training, window
from benchmarks.scale.unmeasured import UNMEASURED

from evofeed.cli import main

QUICK = Loader(make=0.001, handover=0.0)
STAGE = Stage(step=0.2, recycle=0.1, jitter=0.0, samples=1, speedups={}, measured=())
FOUND = json.loads(page.RESULT.read_text())


def test_a_step_without_waits_is_its_passes_and_the_average() -> None:
    found = window(STAGE, QUICK, groups=4, mean_gradient=0.01)
    assert found.step == pytest.approx(0.2 + 1.5 * 0.1 + 0.01)
    assert found.waited == 0


def test_a_storage_that_is_too_slow_sets_the_pace() -> None:
    storage = Storage(servers=2, seconds_a_read=0.1)  # 20 samples a second for 8 a step
    found = window(STAGE, QUICK, groups=8, mean_gradient=0.0, storage=storage, steps=200)
    assert found.step == pytest.approx(8 / 20, rel=0.05)
    assert found.waited > 0 and found.storage_busy > 0.95


def test_reads_that_are_slow_now_and_then_are_hidden_by_what_is_read_ahead() -> None:
    slow = Loader(make=0.001, handover=0.0, slow_share=0.05, slow_seconds=0.5)
    assert window(STAGE, slow, groups=4, mean_gradient=0.0).waited == 0
    never_ahead = Loader(
        ahead=1, threads=1, make=0.001, handover=0.0, slow_share=0.5, slow_seconds=1.0
    )
    assert window(STAGE, never_ahead, groups=4, mean_gradient=0.0).waited > 0.1


def test_the_slowest_of_many_ranks_ends_the_step() -> None:
    unsteady = Stage(step=0.2, recycle=0.0, jitter=0.1, samples=1, speedups={}, measured=())
    one, many = (
        window(unsteady, QUICK, groups=n, mean_gradient=0.0, recycles=(0,)).step for n in (1, 64)
    )
    assert one == pytest.approx(0.2, rel=0.05)
    assert many == pytest.approx(0.2 * (1 + 0.1 * 2.4), rel=0.05)  # the mean of the largest of 64


def test_failures_cost_what_was_done_since_the_checkpoint_and_the_restart() -> None:
    few = training(1.0, 5_000, 8)
    saved = 10 * ASSUMED["checkpoint_stall_seconds"]
    assert few.failures == 0
    assert few.hours * 3600 == pytest.approx(5_000 + saved)
    many = training(1.0, 100_000, 50_000)  # one an hour
    assert 15 < many.failures < 60
    paid = many.hours * 3600 - 100_000 - 200 * ASSUMED["checkpoint_stall_seconds"]
    assert paid == pytest.approx(many.lost_hours * 3600)
    assert 300 < paid / many.failures < 850  # the restart and half of 500 seconds


def test_the_average_takes_what_was_measured_and_more_between_hosts() -> None:
    assert mean_gradient(1) == 0
    assert [mean_gradient(n) for n in (2, 4)] == pytest.approx([0.001218, 0.001636])
    assert mean_gradient(4) < mean_gradient(8) < mean_gradient(16) < mean_gradient(2048)


def test_speeds_beyond_the_measured_go_on_from_them() -> None:
    found = extrapolated({2: 1.6})
    assert found[2] == 1.6 and found[1] == 1.0
    assert found[4] == pytest.approx(1 / (0.25 + 0.75 / 4))
    assert found[16] < 4


def test_what_was_not_fitted_is_predicted_within_five_per_cent() -> None:
    free = [row for row in FOUND["predictions"] if not row["fitted"]]
    assert len(free) >= 2
    assert all(abs(row["error"]) <= page.NEAR for row in FOUND["predictions"])
    assert all(
        row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"] - 1, abs=1e-3)
        for row in FOUND["predictions"]
    )


def test_the_page_is_printed_from_the_result() -> None:
    text = (page.RESULT.parents[2] / "docs" / "scale.md").read_text()
    assert text == page.page(FOUND) + "\n", "run: python benchmarks/scale/page.py > docs/scale.md"


@pytest.mark.parametrize("command", [command for *_, command in UNMEASURED])
def test_commands_that_nobody_ran_on_such_gpus_name_what_there_is(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts, subcommands and options; each was run on CPU ranks by hand."""
    words = command.split()
    at = next(n for n, word in enumerate(words) if word.endswith(".py") or word == "evofeed.cli")
    said = [word for word in words[at:] if word.startswith("--")]
    if words[at] == "evofeed.cli":
        monkeypatch.setenv("COLUMNS", "200")
        first = next(n for n in range(at, len(words)) if words[n].startswith("--"))
        with pytest.raises(SystemExit, match="0"):  # the last word is the run
            main([*words[at + 1 : first - 1], "--help"])
        known = capsys.readouterr().out
    else:
        known = (page.RESULT.parents[2] / words[at]).read_text()
    assert len(said) >= 2 and [word for word in said if word not in known] == []

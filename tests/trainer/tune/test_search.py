"""`evofeed tune`: what it chooses on made-up machines, and trials in processes of their own."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.conftest import small_run
from tests.trainer.forked import command

from evofeed.base.errors import EvofeedError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import tiny
from evofeed.trainer.run.distributed import GONE
from evofeed.trainer.run.settings import load_config
from evofeed.trainer.tune import commands
from evofeed.trainer.tune import search as tuning
from evofeed.trainer.tune.search import Settings, Trial, alternatives, applied, ratio, search

RUN = tiny().train.replace(accumulate=4)
VALUES = alternatives(4, True)


def machine(seed: int, noise: float = 0.0) -> Callable[[Settings], Trial]:
    """Times of settings: a factor for each value and for some pairs of values, and noise."""
    factors, shaken = random.Random(seed), random.Random(seed + 1)
    alone = {(n, v): factors.uniform(0.6, 1.6) for n, vs in VALUES.items() for v in vs}
    pairs = {pair: factors.uniform(0.9, 1.1) for pair in itertools.combinations(alone, 2)}

    def measure(settings: Settings) -> Trial:
        values = [(name, getattr(settings, name)) for name in VALUES]
        time = 1.0
        for value in values:
            time *= alone[value]
        for pair in itertools.combinations(values, 2):
            time *= pairs[pair]
        return Trial(seconds=tuple(time * (1 + shaken.gauss(0, noise)) for _ in range(8)))

    return measure


def test_a_choice_is_never_slower_than_the_default_and_near_the_best() -> None:
    result = search(RUN, machine(0, noise=0.01), VALUES)
    all_settings = (
        Settings.of(RUN)._replace(**dict(zip(VALUES, values, strict=True)))
        for values in itertools.product(*VALUES.values())
    )
    times = {settings: machine(0)(settings).seconds[0] for settings in all_settings}
    assert times[result.chosen] <= 1.005 * times[result.default]
    assert times[result.chosen] <= 1.03 * min(times.values())
    assert len(result.trials) < 0.5 * len(times)


def test_what_fails_is_kept_with_its_reason_and_never_chosen() -> None:
    quiet = machine(3)

    def measure(settings: Settings) -> Trial:
        return Trial(error="out of memory") if not settings.checkpointing else quiet(settings)

    result = search(RUN, measure, VALUES)
    assert result.chosen.checkpointing  # the default itself does not fit
    assert result.trials[0][1].error == "out of memory"
    assert not result.ratios
    assert ratio(Trial(seconds=(1.0, 4.0, 9.0)), Trial(seconds=(2.0, 8.0, 1.0))) == 0.5
    nothing = search(RUN, lambda settings: Trial(error="no"), VALUES)
    assert nothing.chosen == nothing.default


def test_a_gain_that_does_not_last_leaves_the_default() -> None:
    calls = iter(range(1000))

    def measure(settings: Settings) -> Trial:
        early = next(calls) < 6  # the machine is busy while the default is looked at first
        slow = settings == Settings.of(RUN) and early
        return Trial(seconds=(2.0 if slow else 1.0,) * 8)

    result = search(RUN, measure, VALUES)
    assert result.chosen == result.default
    assert result.ratios == [1.0, 1.0, 1.0]


def test_the_samples_of_a_step_stay_the_same() -> None:
    for axial, batch_size in itertools.product((1, 2, 4), (1, 2, 4)):
        settings = Settings.of(RUN)._replace(axial=axial, batch_size=batch_size, prefetch=64)
        changed = applied(RUN, settings, 4)
        assert Settings.of(changed) == settings
        assert changed.accumulate * (4 // axial) * batch_size == RUN.accumulate * 4


def test_what_a_rank_died_of_is_said_and_not_that_the_others_miss_it(tmp_path: Path) -> None:
    lost, cause = f"evofeed: rank 0 of 2: {GONE}", "OutOfMemoryError: none left"
    for texts in ((lost, cause), (cause, lost)):
        for rank, text in enumerate(texts):
            log = tmp_path / "ranks" / str(rank) / "stderr.log"
            log.parent.mkdir(exist_ok=True, parents=True)
            log.write_text(f"a warning\n{text}\n")
        assert tuning.cause_in(tmp_path) == cause


@pytest.mark.slow
def test_two_ranks_that_share_their_samples_are_timed(
    tiny_dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torchrun, over gloo."""
    for name in ("WARM_UP", "STEPS"):
        monkeypatch.setattr(tuning, name, 1)
    run = small_run(axial=2, loader={"crop_size": 9})
    options: dict[str, Any] = {"ranks": 2, "device": "cpu", "limit": 600.0}
    trial = tuning.launch(run, Settings.of(run), [tiny_dataset], **options)
    assert not trial.error and len(trial.seconds) == 1
    assert trial.peak_memory > 2**20 and 0 <= trial.wait_share < 1


@pytest.mark.system
def test_a_trial_that_fails_or_hangs_says_why(tiny_dataset: str) -> None:
    run = tiny().train
    options: dict[str, Any] = {"ranks": 1, "device": "cpu"}
    failed = tuning.launch(run, Settings.of(run), [f"{tiny_dataset}-not"], limit=600.0, **options)
    assert failed.seconds == () and f"{tiny_dataset}-not" in failed.error
    hung = tuning.launch(run, Settings.of(run), [tiny_dataset], limit=0.01, **options)
    assert hung.error == "no end within 0 s"
    eight = Settings.of(RUN)._replace(batch_size=8)
    odd = tuning.launch(run, eight, [tiny_dataset], limit=1.0, **options)
    assert odd.error == "samples a step: 1, which passes of 8 do not divide"


def test_the_command_says_every_trial_and_writes_what_train_reads(
    tiny_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "run.yaml", tmp_path / "tuned.yaml"
    source.write_text("preset: tiny\naccumulate: 4\nseed: 7\n")

    def stand_in(config: TrainConfig, settings: Settings, *_: Any, **__: Any) -> Trial:
        if settings.batch_size > 4:
            return Trial(error="too many")
        return Trial(seconds=(0.4 / settings.batch_size,) * 8)

    monkeypatch.setattr(tuning, "launch", stand_in)
    words = ["--dataset", tiny_dataset, "--out", str(target), "--device", "cpu"]
    result = json.loads(command(commands.tune, str(source), *words, "--json").stdout)
    assert result["chosen"]["batch_size"] == 4 and result["ratio_to_default"] == 0.25
    tuned = load_config(str(target))
    assert tuned.accumulate == 1 and tuned.seed == 7
    assert tuned.loader["batch_size"] == 4
    assert target.read_text().startswith("# evofeed tune")
    lines = command(commands.tune, str(source), *words).output.splitlines()
    assert "checkpointing False, batch_size 1, prefetch 16: 400.0 ms a step" in lines[0]
    assert not any("cuda_graphs" in line for line in lines)  # a CPU has none to try
    assert any(line.startswith("not timed: checkpointing False, batch_size 8") for line in lines)


def test_a_dataset_that_is_not_there_is_said_before_any_trial(
    tiny_dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "launch", lambda *_, **__: pytest.fail("a trial began"))
    words = ["--dataset", f"{tiny_dataset}-not", "--device", "cpu"]
    with pytest.raises(EvofeedError, match="-not"):
        command(commands.tune, "tiny", *words, "--out", str(tmp_path / "to.yaml"), catch=False)

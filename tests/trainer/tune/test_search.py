"""`evofeed tune`: what it chooses on made-up machines, and trials in processes of their own."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.synthetic_records import write_dataset
from typer.testing import CliRunner

from evofeed.base.errors import EvofeedError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.presets import tiny
from evofeed.trainer.run.build import build_loader
from evofeed.trainer.run.distributed import GONE, World
from evofeed.trainer.run.settings import load_config
from evofeed.trainer.tune import commands, trial
from evofeed.trainer.tune.search import Settings, Trial, alternatives, applied, ratio, search
from evofeed.trainer.tune.trial import launch, run_trial

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


def exact(measure: Callable[[Settings], Trial], settings: Settings) -> float:
    return measure(settings).seconds[0]


def possible() -> list[Settings]:
    names = list(VALUES)
    every = (
        replace(Settings.of(RUN), **dict(zip(names, values, strict=True)))
        for values in itertools.product(*VALUES.values())
    )
    return [settings for settings in every if fits(settings)]


def fits(settings: Settings) -> bool:
    samples = RUN.accumulate * 4
    return samples % (4 // settings.axial * settings.batch_size) == 0


@pytest.mark.slow
def test_a_choice_is_never_slower_than_the_default_and_near_the_best() -> None:
    regrets = []
    for seed in range(6):
        found = search(RUN, machine(seed, noise=0.01), VALUES, ranks=4)
        quiet = machine(seed)
        chosen, default = exact(quiet, found.chosen), exact(quiet, found.default)
        assert chosen <= 1.005 * default
        regrets.append(chosen / min(exact(quiet, settings) for settings in possible()) - 1)
        assert len(found.trials) < 0.5 * len(possible())
    regrets.sort()
    assert regrets[len(regrets) * 3 // 4] <= 0.03


def test_what_fails_is_kept_with_its_reason_and_never_chosen() -> None:
    quiet = machine(3)

    def measure(settings: Settings) -> Trial:
        return Trial(error="out of memory") if not settings.checkpointing else quiet(settings)

    found = search(RUN, measure, VALUES, ranks=4)
    assert found.chosen.checkpointing  # the default itself does not fit
    assert found.trials[0][1].error == "out of memory"
    assert not found.ratios
    nothing = search(RUN, lambda settings: Trial(error="no"), VALUES, ranks=4)
    assert nothing.chosen == nothing.default


def test_a_gain_that_does_not_last_leaves_the_default() -> None:
    calls = iter(range(1000))

    def measure(settings: Settings) -> Trial:
        early = next(calls) < 6  # the machine is busy while the default is looked at first
        slow = settings == Settings.of(RUN) and early
        return Trial(seconds=(2.0 if slow else 1.0,) * 8)

    found = search(RUN, measure, VALUES, ranks=4)
    assert found.chosen == found.default
    assert found.ratios == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("settings", possible()[::7])
def test_the_samples_of_a_step_stay_the_same(settings: Settings) -> None:
    changed = applied(RUN, settings, 4)
    assert Settings.of(changed) == settings
    at_once = 4 // changed.axial * settings.batch_size
    assert changed.accumulate * at_once == RUN.accumulate * 4


def test_batches_read_ahead_are_the_loaders(dataset: str) -> None:
    for prefetch in VALUES["prefetch"]:
        run = applied(tiny().train, replace(Settings.of(RUN), prefetch=prefetch), 1)
        loader = build_loader(run, dataset, World())
        assert loader._options["prefetch"] == prefetch  # type: ignore[attr-defined]
        loader.close()  # type: ignore[attr-defined]


def test_a_batch_that_does_not_divide_the_step_is_not_run() -> None:
    asked = []

    def measure(settings: Settings) -> Trial:
        asked.append(settings.batch_size)
        return Trial(seconds=(1.0,))

    found = search(RUN.replace(accumulate=2), measure, {"batch_size": (1, 2, 4)})
    assert asked == [1, 2]
    (refused,) = [trial.error for settings, trial in found.trials if settings.batch_size == 4]
    assert refused == "samples a step: 2, which passes of 4 do not divide"


def test_equal_steps_are_compared_and_one_outlier_does_not_count() -> None:
    one, other = Trial(seconds=(1.0, 4.0, 9.0)), Trial(seconds=(2.0, 8.0, 1.0))
    assert ratio(one, other) == 0.5
    assert ratio(Trial(error="x"), other) == float("inf")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tune") / "data"
    write_dataset(folder, 8, tiny=True)
    return str(folder)


@pytest.mark.system
def test_a_trial_counts_steps_and_leaves_nothing_behind(dataset: str) -> None:
    found = run_trial(tiny().train, [dataset], 2, "cpu")
    assert len(found.seconds) == 2 and min(found.seconds) > 0
    assert found.peak_memory > 2**20 and 0 <= found.wait_share < 1 and not found.error


@pytest.mark.system
def test_a_trial_that_fails_or_hangs_in_its_process_says_why(dataset: str) -> None:
    run = tiny().train
    few: dict[str, Any] = {"steps": 1, "ranks": 1, "device": "cpu"}
    missing = launch(run, [f"{dataset}-not"], limit=300.0, **few)
    assert missing.seconds == () and "data-not" in missing.error
    assert launch(run, [dataset], limit=0.01, **few).error == "no end within 0 s"


def test_what_a_rank_died_of_is_said_and_not_that_the_others_miss_it(tmp_path: Path) -> None:
    lost, cause = f"TrainerError: rank 0 of 2: {GONE}", "OutOfMemoryError: none left"
    for texts in ((lost, cause), (cause, lost)):
        for rank, text in enumerate(texts):
            (tmp_path / f"rank{rank}.json").write_text(json.dumps(asdict(Trial(error=text))))
        assert trial._said(tmp_path, "").error == cause
    assert trial._said(tmp_path / "none", "first\nlast\n").error == "last"


@pytest.mark.system
def test_two_ranks_that_fail_at_once_say_why(dataset: str) -> None:
    few: dict[str, Any] = {"steps": 1, "ranks": 2, "device": "cpu", "limit": 300.0}
    assert "data-not" in launch(tiny().train, [f"{dataset}-not"], **few).error


def test_a_dataset_that_is_not_there_is_said_before_any_trial(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "launch", lambda *_, **__: pytest.fail("a trial began"))
    source = tmp_path / "run.yaml"
    source.write_text("preset: tiny\n")
    words = ["--dataset", f"{dataset}-not", "--device", "cpu", "--out", str(tmp_path / "to.yaml")]
    with pytest.raises(EvofeedError, match="data-not"):
        CliRunner().invoke(_app(), [str(source), *words], catch_exceptions=False)


@pytest.mark.slow
def test_the_command_measures_two_ranks_that_share_their_samples_or_not(
    dataset: str, tmp_path: Path
) -> None:
    """Real trials: torchrun, two processes each, gloo."""
    source, target = tmp_path / "run.yaml", tmp_path / "tuned.yaml"
    small = "model: {evoformer: {no_blocks: 1}, structure_module: {no_blocks: 1}}"
    source.write_text(f"preset: tiny\nloader: {{crop_size: 17}}\n{small}\n")
    words = ["--dataset", dataset, "--out", str(target), "--device", "cpu", "--ranks", "2"]
    words += ["--only", "axial", "--steps", "1", "--rounds", "1", "--json"]
    done = CliRunner().invoke(_app(), [str(source), *words])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    tried = {one["settings"]["axial"]: one for one in found["trials"]}
    assert set(tried) == {1, 2}
    assert all(len(one["seconds"]) == 1 and not one["error"] for one in tried.values())
    tuned = load_config(str(target))
    assert tuned.accumulate == tuned.axial == found["chosen"]["axial"]  # two samples a step
    assert found["ratio_to_default"] <= 1


def test_the_command_writes_what_train_reads(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "run.yaml", tmp_path / "tuned.yaml"
    source.write_text("preset: tiny\naccumulate: 4\nseed: 7\n")

    def stand_in(config: TrainConfig, dataset: Sequence[str], **options: Any) -> Trial:
        return Trial(seconds=(4.0 / Settings.of(config).batch_size,) * options["steps"])

    monkeypatch.setattr(trial, "launch", stand_in)
    words = ["--dataset", dataset, "--out", str(target), "--device", "cpu", "--json"]
    done = CliRunner().invoke(_app(), [str(source), *words])
    assert done.exit_code == 0, done.output
    found: Mapping[str, Any] = json.loads(done.stdout)
    assert found["chosen"]["batch_size"] == 4 and found["ratio_to_default"] == 0.25
    tuned = load_config(str(target))
    assert tuned.accumulate == 1 and tuned.seed == 7
    assert tuned.loader["batch_size"] == 4
    assert target.read_text().startswith("# evofeed tune")


def test_every_trial_is_a_line_with_what_was_changed(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "run.yaml"
    source.write_text("preset: tiny\naccumulate: 2\n")
    monkeypatch.setattr(trial, "launch", lambda *_, **options: Trial(seconds=(0.1234,)))
    words = ["--dataset", dataset, "--out", str(tmp_path / "tuned.yaml"), "--device", "cpu"]
    done = CliRunner().invoke(_app(), [str(source), *words])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "checkpointing False, batch_size 1, prefetch 16: 123.4 ms a step" in lines[0]
    assert "cuda_graphs" not in done.output  # a CPU has none to try
    said = "not timed: checkpointing False, batch_size 8, prefetch 16: samples a step: 2"
    assert any(line.startswith(said) for line in lines)
    assert "the default stays" in lines[-1]


def _app() -> Any:
    import typer

    app = typer.Typer()
    app.command()(commands.tune)
    return app

"""Coordinate descent over the settings of a run that change its speed but not its results.

Each setting in turn takes each of its values while the others stay; the fastest value is taken
over. At the end winner and default run in turns, and the winner is chosen only if it is faster
there: so the choice is never slower than the default, up to the noise of those runs.

A trial is a few timed steps of `evofeed train` in separate processes, which contain its failures.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evofeed.base.errors import InputError
from evofeed.base.files import scratch_folder
from evofeed.base.run_files import RUN
from evofeed.trainer.config import TrainConfig, save_config
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.report.run_report import training_seconds
from evofeed.trainer.run.distributed import GONE
from evofeed.trainer.run.settings import parts_of

_GAIN = 0.01  # less is noise
_SWEEPS = 2  # over all settings; the second only if the first changed a setting
WARM_UP = 3  # steps: kernels compiled, a graph recorded, buffers grown
STEPS = 8
"""Timed steps of a trial."""
_CAUSE = re.compile(r"^(?:evofeed|[\w.]*Error): .*", re.MULTILINE)


class Settings(NamedTuple):
    """The tuned settings. `accumulate` is adapted so that a step has as many samples in all."""

    axial: int
    cuda_graphs: bool
    checkpointing: bool
    batch_size: int
    prefetch: int

    @classmethod
    def of(cls, config: TrainConfig) -> Settings:
        """The settings of a run."""
        parts = parts_of(config)
        return cls(
            config.axial, config.cuda_graphs, parts.model.activation_checkpointing,
            parts.loader.batch_size, config.prefetch,
        )  # fmt: skip


class Trial(NamedTuple):
    """A short run."""

    seconds: tuple[float, ...] = ()
    """Of each timed step; the same samples in the same order in every trial."""
    peak_memory: int = 0
    """Bytes, the maximum over ranks."""
    wait_share: float = 0.0
    """Share of the time spent waiting for data."""
    error: str = ""
    """The reason if there are no seconds."""


class TuneResult(NamedTuple):
    """The result of a search: `ratios` are the winner's time over the default's, one per round of
    the two in turn; `trials` are all trials, in order."""

    default: Settings
    chosen: Settings
    ratios: list[float]
    trials: list[tuple[Settings, Trial]]


def applied(config: TrainConfig, settings: Settings, ranks: int) -> TrainConfig:
    """The run with these settings and as many samples a step as before.

    Raises:
        InputError: the run cannot have these settings; says why.
    """
    samples = config.accumulate * (ranks // config.axial) * Settings.of(config).batch_size
    per_pass = ranks // settings.axial * settings.batch_size
    if ranks % settings.axial or samples % per_pass:
        raise InputError(f"samples a step: {samples}, which passes of {per_pass} do not divide")
    changed = config.replace(
        axial=settings.axial,
        accumulate=samples // per_pass,
        cuda_graphs=settings.cuda_graphs,
        prefetch=settings.prefetch,
        model={**config.model, "activation_checkpointing": settings.checkpointing},
        loader={**config.loader, "batch_size": settings.batch_size},
    )
    parts_of(changed)
    return changed


def alternatives(ranks: int, on_gpu: bool) -> dict[str, Sequence[Any]]:
    """Values of each setting to try on this machine."""
    values: dict[str, Sequence[Any]] = {
        "axial": [n for n in range(1, ranks + 1) if ranks % n == 0],
        "cuda_graphs": (True, False) if on_gpu else (),
        "checkpointing": (False, True),
        "batch_size": (1, 2, 4, 8),
        "prefetch": (4, 16, 64),
    }
    return {name: options for name, options in values.items() if len(options) > 1}


def search(
    config: TrainConfig, measure: Callable[[Settings], Trial],
    values: Mapping[str, Sequence[Any]], rounds: int = 3,
) -> TuneResult:  # fmt: skip
    """The fastest settings that coordinate descent finds, confirmed against the default.

    Settings that fail have the reason in their trial's error. `values` are those of `alternatives`;
    at the end winner and default run in turns for `rounds` rounds.
    """
    default = best = Settings.of(config)
    trials: list[tuple[Settings, Trial]] = []

    def run_trial(settings: Settings) -> Trial:
        trials.append((settings, measure(settings)))
        return trials[-1][1]

    by_settings = {default: run_trial(default)}
    for _ in range(_SWEEPS):
        before = best
        for name, value in ((name, value) for name, options in values.items() for value in options):
            candidate = best._replace(**{name: value})
            if candidate not in by_settings:
                by_settings[candidate] = run_trial(candidate)
            if ratio(by_settings[candidate], by_settings[best]) < 1 - _GAIN:
                best = candidate
        if best == before:
            break
    ratios = []
    if best != default and not by_settings[default].error:
        for number in range(rounds):
            pair = (default, best) if number % 2 else (best, default)
            turn = {settings: run_trial(settings) for settings in pair}
            ratios.append(ratio(turn[best], turn[default]))
        best = best if statistics.median(ratios) < 1 else default
    return TuneResult(default, best, ratios, trials)


def ratio(trial: Trial, base: Trial) -> float:
    """Time of a trial over the base's, the median over steps; a failed trial is infinitely slow."""
    if trial.error or base.error:
        return float("inf") if trial.error else 0.0
    return statistics.median(a / b for a, b in zip(trial.seconds, base.seconds, strict=False))


def launch(
    config: TrainConfig, settings: Settings, dataset: Sequence[str], *, ranks: int, device: str,
    limit: float,
) -> Trial:  # fmt: skip
    """Runs a trial with `ranks` ranks, each with a GPU if `device` is cuda.

    It is killed after `limit` seconds; every failure becomes the trial's error.
    """
    changes = {"checkpoint_every": 0, "validate_every": 0, "profile_steps": 0}
    try:
        changed = applied(config, settings, ranks).replace(steps=WARM_UP + STEPS, **changes)
    except InputError as error:
        return Trial(error=error.message)
    with scratch_folder("evofeed-tune-") as out:
        save_config(changed, out / "run.yaml")
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--redirects=3"]
        launcher += [f"--nproc-per-node={ranks}", f"--log-dir={out / 'ranks'}", "-m", "evofeed.cli"]
        arguments = ["train", str(out / "run.yaml"), "--out", str(out / "run"), "--device", device]
        arguments += [argument for uri in dataset for argument in ("--dataset", uri)]
        process = subprocess.Popen(
            [*launcher, *arguments], start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            failed = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return Trial(error=f"no end within {limit:.0f} s")
        finally:  # ranks may outlive their launcher
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Trial(error=cause_in(out)) if failed else _timed(out / "run")


def _timed(run: Path) -> Trial:
    facts = json.loads((run / RUN).read_text())
    lines = read_steps(run)[WARM_UP:]
    if facts["stopped_by"] or not lines:
        return Trial(error=f"stopped by {facts['stopped_by']}")
    seconds = tuple(training_seconds(line) for line in lines)
    waited = sum(line["seconds"]["data_wait"] for line in lines)
    peak = max(facts["peak_memory_by_rank"])
    return Trial(seconds=seconds, peak_memory=peak, wait_share=waited / sum(seconds))


def cause_in(folder: Path) -> str:
    """The error that ended a trial, from its ranks' logs: a cause before errors of lost peers."""
    texts = [path.read_text() for path in sorted(folder.glob("ranks/**/stderr.log"))]
    causes = [line for text in texts for line in _CAUSE.findall(text)]
    last = [line for text in texts for line in text.strip().splitlines()[-1:]]
    lines = sorted(causes, key=lambda line: GONE in line) or last or ["it ended without a message"]
    return lines[0].removeprefix("evofeed: ")[:300]

"""Coordinate descent over the settings of a run that change its speed and not what it learns.

One setting after another takes each of its values while the others stay; what is faster stays.
At the end winner and default take turns, and only what is faster there is chosen: so the choice
is never slower than the default but for what noise those turns leave.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evofeed.base.errors import InputError
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.settings import check_parts, loader_config, model_config

_GAIN = 0.01  # less is noise
_CLOSE = 0.05  # such gains are measured again, beside what they are compared with
_SWEEPS = 2  # over all settings; the second only where the first changed something


@dataclass(frozen=True, slots=True)
class Settings:
    """What is tuned. Samples of a step are the same in all: `accumulate` makes up for the rest."""

    axial: int
    cuda_graphs: bool
    checkpointing: bool
    batch_size: int
    overlap: bool
    prefetch: int

    @classmethod
    def of(cls, config: TrainConfig) -> Settings:
        """Those of a run."""
        return cls(
            config.axial,
            config.cuda_graphs,
            model_config(config).activation_checkpointing,
            loader_config(config, World()).batch_size,
            config.overlap,
            config.prefetch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A short run.

    Attributes:
        seconds: of each counted step; the same samples in the same order in every trial.
        peak_memory: bytes of the rank with most.
        wait_share: of the time, for data.
        error: why there are no seconds.
    """

    seconds: tuple[float, ...] = ()
    peak_memory: int = 0
    wait_share: float = 0.0
    error: str = ""


@dataclass(slots=True)
class TuneResult:
    """What the search did.

    Attributes:
        chosen: the settings.
        ratios: time of the winner over the default's, one a round of the two in turn.
        trials: every trial, in order.
    """

    default: Settings
    chosen: Settings
    ratios: list[float] = field(default_factory=list)
    trials: list[tuple[Settings, Trial]] = field(default_factory=list)


Measure = Callable[[Settings], Trial]


def applied(config: TrainConfig, settings: Settings, ranks: int) -> TrainConfig:
    """The run with these settings and as many samples a step as before.

    Raises:
        InputError: there are no such settings of this run; says why.
    """
    samples = config.accumulate * (ranks // config.axial) * Settings.of(config).batch_size
    at_once = ranks // settings.axial * settings.batch_size
    if ranks % settings.axial or samples % at_once:
        raise InputError(f"samples a step: {samples}, which passes of {at_once} do not divide")
    changed = config.replace(
        axial=settings.axial,
        accumulate=samples // at_once,
        cuda_graphs=settings.cuda_graphs,
        overlap=settings.overlap,
        prefetch=settings.prefetch,
        model={**config.model, "activation_checkpointing": settings.checkpointing},
        loader={**config.loader, "batch_size": settings.batch_size},
    )
    check_parts(changed)
    return changed


def alternatives(ranks: int, on_gpu: bool) -> Mapping[str, Sequence[Any]]:
    """Values of each setting that this machine can tell apart."""
    found: dict[str, Sequence[Any]] = {"checkpointing": (False, True), "batch_size": (1, 2, 4, 8)}
    found["prefetch"] = (4, 16, 64)
    if on_gpu:
        found = {"cuda_graphs": (True, False), **found}
    if ranks > 1:
        found = {"axial": [n for n in range(1, ranks + 1) if ranks % n == 0], **found}
        found["overlap"] = (True, False)
    return found


def search(
    config: TrainConfig,
    measure: Measure,
    values: Mapping[str, Sequence[Any]],
    *,
    ranks: int = 1,
    rounds: int = 3,
    report: Callable[[Settings, Trial], None] = lambda settings, trial: None,
) -> TuneResult:
    """The fastest settings that coordinate descent finds, confirmed beside the default.

    Args:
        config: the run.
        measure: runs settings for a few steps.
        values: what each setting may be, from `alternatives`.
        ranks: of the run.
        rounds: how often winner and default take turns at the end.
        report: called after every trial.
    """
    default = Settings.of(config)
    found = TuneResult(default, default)
    known: dict[Settings, Trial] = {}

    def take(settings: Settings) -> Trial:
        try:
            applied(config, settings, ranks)
        except InputError as error:
            trial = Trial(error=error.message)
        else:
            trial = measure(settings)
        found.trials.append((settings, trial))
        known[settings] = trial
        report(settings, trial)
        return trial

    best = default
    take(default)
    for _ in range(_SWEEPS):
        before = best
        for name, value in ((name, value) for name, some in values.items() for value in some):
            candidate = replace(best, **{name: value})
            if candidate == best:
                continue
            trial = known[candidate] if candidate in known else take(candidate)
            gain = 1 - ratio(trial, known[best])
            if _GAIN < gain < _CLOSE:  # not far from noise, and the machine may have changed
                gain = 1 - ratio(take(candidate), take(best))
            if gain > _GAIN:
                best = candidate
        if best == before:
            break
    if best != default and not known[default].error:
        for number in range(rounds):
            pair = (default, best) if number % 2 else (best, default)
            trials = {settings: take(settings) for settings in pair}
            found.ratios.append(ratio(trials[best], trials[default]))
        best = best if statistics.median(found.ratios) < 1 else default
    found.chosen = best
    return found


def ratio(one: Trial, other: Trial) -> float:
    """Time of one over the other's, the median of equal steps; what failed is infinitely slow."""
    if one.error or other.error:
        return float("inf") if one.error else 0.0
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=False))

"""Coordinate descent over the settings of a run that change its speed and not what it learns.

One setting after another takes each of its values while the others stay; what is faster stays.
At the end winner and default take turns, and only what is faster there is chosen: so the choice
is never slower than the default but for what noise those turns leave.

A trial is a few steps, timed, as `evofeed train` in processes of its own: faults stay there.
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
_SWEEPS = 2  # over all settings; the second only where the first changed something
WARM_UP = 3  # steps: kernels compiled, a graph recorded, buffers grown
STEPS = 8
"""Of a trial that count."""
_CAUSE = re.compile(r"^(?:evofeed|[\w.]*Error): .*", re.MULTILINE)


class Settings(NamedTuple):
    """What is tuned. Samples of a step are the same in all: `accumulate` makes up for the rest."""

    axial: int
    cuda_graphs: bool
    checkpointing: bool
    batch_size: int
    prefetch: int

    @classmethod
    def of(cls, config: TrainConfig) -> Settings:
        """Those of a run."""
        parts = parts_of(config)
        return cls(
            config.axial, config.cuda_graphs, parts.model.activation_checkpointing,
            parts.loader.batch_size, config.prefetch,
        )  # fmt: skip


class Trial(NamedTuple):
    """A short run."""

    seconds: tuple[float, ...] = ()
    """Of each counted step; the same samples in the same order in every trial."""
    peak_memory: int = 0
    """Bytes of the rank with most."""
    wait_share: float = 0.0
    """Of the time, for data."""
    error: str = ""
    """Why there are no seconds."""


class TuneResult(NamedTuple):
    """What the search did: `ratios` are the winner's time over the default's, one a round of the
    two in turn; `trials` are all, in order."""

    default: Settings
    chosen: Settings
    ratios: list[float]
    trials: list[tuple[Settings, Trial]]


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
        prefetch=settings.prefetch,
        model={**config.model, "activation_checkpointing": settings.checkpointing},
        loader={**config.loader, "batch_size": settings.batch_size},
    )
    parts_of(changed)
    return changed


def alternatives(ranks: int, on_gpu: bool) -> dict[str, Sequence[Any]]:
    """Values of each setting that this machine can tell apart."""
    values: dict[str, Sequence[Any]] = {
        "axial": [n for n in range(1, ranks + 1) if ranks % n == 0],
        "cuda_graphs": (True, False) if on_gpu else (),
        "checkpointing": (False, True),
        "batch_size": (1, 2, 4, 8),
        "prefetch": (4, 16, 64),
    }
    return {name: some for name, some in values.items() if len(some) > 1}


def search(
    config: TrainConfig, measure: Callable[[Settings], Trial],
    values: Mapping[str, Sequence[Any]], rounds: int = 3,
) -> TuneResult:  # fmt: skip
    """The fastest settings that coordinate descent finds, confirmed beside the default.

    What is wrong with settings is their trial's error. `values` are those of `alternatives`; at the
    end winner and default take turns for so many rounds.
    """
    default = best = Settings.of(config)
    trials: list[tuple[Settings, Trial]] = []

    def take(settings: Settings) -> Trial:
        trials.append((settings, measure(settings)))
        return trials[-1][1]

    known = {default: take(default)}
    for _ in range(_SWEEPS):
        before = best
        for name, value in ((name, value) for name, some in values.items() for value in some):
            candidate = best._replace(**{name: value})
            if candidate not in known:
                known[candidate] = take(candidate)
            if ratio(known[candidate], known[best]) < 1 - _GAIN:
                best = candidate
        if best == before:
            break
    ratios = []
    if best != default and not known[default].error:
        for number in range(rounds):
            pair = (default, best) if number % 2 else (best, default)
            turn = {settings: take(settings) for settings in pair}
            ratios.append(ratio(turn[best], turn[default]))
        best = best if statistics.median(ratios) < 1 else default
    return TuneResult(default, best, ratios, trials)


def ratio(one: Trial, other: Trial) -> float:
    """Time of one over the other's, the median of equal steps; what failed is infinitely slow."""
    if one.error or other.error:
        return float("inf") if one.error else 0.0
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=False))


def launch(
    config: TrainConfig, settings: Settings, dataset: Sequence[str], *, ranks: int, device: str,
    limit: float,
) -> Trial:  # fmt: skip
    """Run a trial with so many ranks, each with a GPU where `device` is cuda.

    It is given up after `limit` seconds; every failure is the trial's error.
    """
    few = {"steps": WARM_UP + STEPS, "checkpoint_every": 0, "validate_every": 0, "profile_steps": 0}
    try:
        changed = applied(config, settings, ranks).replace(**few)
    except InputError as error:
        return Trial(error=error.message)
    with scratch_folder("evofeed-tune-") as out:
        save_config(changed, out / "run.yaml")
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--redirects=3"]
        start += [f"--nproc-per-node={ranks}", f"--log-dir={out / 'ranks'}", "-m", "evofeed.cli"]
        words = ["train", str(out / "run.yaml"), "--out", str(out / "run"), "--device", device]
        words += [word for uri in dataset for word in ("--dataset", uri)]
        process = subprocess.Popen(
            [*start, *words], start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            failed = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return Trial(error=f"no end within {limit:.0f} s")
        finally:  # ranks of a launcher that has ended may still be there
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
    """What the ranks of a trial say they died of, a cause before what came of it."""
    texts = [path.read_text() for path in sorted(folder.glob("ranks/**/stderr.log"))]
    causes = [line for text in texts for line in _CAUSE.findall(text)]
    last = [line for text in texts for line in text.strip().splitlines()[-1:]]
    said = sorted(causes, key=lambda line: GONE in line) or last or ["it ended without a word"]
    return said[0].removeprefix("evofeed: ")[:300]

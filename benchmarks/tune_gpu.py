"""`evofeed tune` on the machine at hand: what it tries, what it chooses, and how good that is.

    PYTHONPATH=src python benchmarks/tune_gpu.py --out tune.json --limit 200
    PYTHONPATH=src python benchmarks/tune_gpu.py --out tune.json --all --blocks 8 \
        --only cuda_graphs checkpointing batch_size
    PYTHONPATH=src python benchmarks/tune_gpu.py --out tune_cpu.json --preset tiny --device cpu \
        --all --accumulate 4

A run of the preset on synthetic chains, four passes a step unless said otherwise; `--blocks` of
the Evoformer and `--only` some settings for less time. `--all` then tries every combination that
the search left out. The best of all and the choice take turns: regret is the median of the
choice's time over the best's, less one. Trials are in this process there, to be many.
No new trial but those turns begins after `--limit` seconds; what was not tried is said.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import command, forget
from tests.trainer.synthetic_records import write_dataset

from evofeed.errors import InputError, TrainerError
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.tune.search import (
    Settings,
    Trial,
    TuneResult,
    alternatives,
    applied,
    ratio,
    search,
)
from evofeed.trainer.tune.trial import launch, run_trial


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="initial_training")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--limit", type=float, default=200)
    parser.add_argument("--all", action="store_true", help="every combination: regret")
    parser.add_argument("--blocks", type=int, default=0, help="of the Evoformer; 0: the preset's")
    parser.add_argument("--only", nargs="+", default=[], help="settings to vary")
    options = parser.parse_args()
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-tune-"))
    data = [str(folder / "data")]
    write_dataset(folder / "data", 16, tiny=options.preset == "tiny")
    fewer = {"evoformer": {"no_blocks": options.blocks}} if options.blocks else {}
    run = PRESETS[options.preset]().train.replace(accumulate=options.accumulate, model=fewer)
    cuda = options.device == "cuda"
    result: dict[str, Any] = {
        "benchmark": "tune",
        "command": command(__file__),
        "device": torch.cuda.get_device_name() if cuda else "CPU", "torch": torch.__version__,
        "python": platform.python_version(), "load": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "preset": options.preset, "ranks": options.ranks, "accumulate": options.accumulate,
        "evoformer_blocks": options.blocks or "the preset's", "steps": options.steps, "trials": [],
    }  # fmt: skip

    def keep() -> None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    def measure(settings: Settings) -> Trial:
        if time.perf_counter() - began > options.limit:
            return Trial(error="not tried: the benchmark's time is over")
        return tried(settings)

    def tried(settings: Settings) -> Trial:
        config = applied(run, settings, options.ranks)
        if options.all:
            forget(torch.device(options.device))
            try:
                return run_trial(config, data, options.steps, options.device)
            except (RuntimeError, TrainerError) as error:  # memory
                return Trial(error=str(error).splitlines()[0])
        return launch(
            config, data, steps=options.steps, ranks=options.ranks, device=options.device,
            limit=120.0,
        )  # fmt: skip

    def report(settings: Settings, trial: Trial) -> None:
        result["trials"].append({"settings": asdict(settings), **asdict(trial)})
        print(json.dumps(result["trials"][-1]), flush=True)
        keep()

    values = alternatives(options.ranks, cuda, lossy=False)
    values = {n: some for n, some in values.items() if n in (options.only or values)}
    found = search(run, measure, values, ranks=options.ranks, rounds=options.rounds, report=report)
    result |= {"default": asdict(found.default), "chosen": asdict(found.chosen)}
    result |= {"ratios": found.ratios, "seconds_in_all": round(time.perf_counter() - began, 1)}
    keep()
    if options.all:
        result |= regret(found, values, measure, tried, report, options.rounds)
        keep()
    print(json.dumps({name: result[name] for name in result if name != "trials"}), flush=True)


def regret(
    found: TuneResult,
    values: Mapping[str, Sequence[Any]],
    measure: Callable[[Settings], Trial],
    tried: Callable[[Settings], Trial],
    report: Callable[[Settings, Trial], None],
    rounds: int,
) -> dict[str, Any]:
    """Every combination that the search left out; then the best of all and the choice in turn."""
    known: dict[Settings, Trial] = {}
    for settings, trial in found.trials:
        known.setdefault(settings, trial)
    for combination in itertools.product(*values.values()):
        settings = replace(found.chosen, **dict(zip(values, combination, strict=True)))
        if settings in known:
            continue
        try:
            known[settings] = measure(settings)
        except InputError as error:
            known[settings] = Trial(error=error.message)
        report(settings, known[settings])
    timed = [settings for settings, trial in known.items() if not trial.error]
    best = min(timed, key=lambda settings: ratio(known[settings], known[found.chosen]))
    ratios = []
    for number in range(0 if best == found.chosen else rounds):
        pair = (best, found.chosen) if number % 2 else (found.chosen, best)
        trials = {settings: tried(settings) for settings in pair}
        for settings, trial in trials.items():
            report(settings, trial)
        ratios.append(ratio(trials[found.chosen], trials[best]))
    return {
        "combinations": len(known), "timed": len(timed), "best": asdict(best),
        "choice_over_best": ratios, "regret": max(statistics.median(ratios or [1.0]) - 1, 0.0),
    }  # fmt: skip


if __name__ == "__main__":
    main()

"""`evofeed tune` on the machine at hand: what it tries, what it chooses, and how good that is.

    PYTHONPATH=src python benchmarks/tune_gpu.py --out tune.json --limit 200
    PYTHONPATH=src python benchmarks/tune_gpu.py --out tune_cpu.json --preset tiny --device cpu \
        --all --accumulate 4

A run of the preset on synthetic chains, four passes a step unless said otherwise. `--all` then
lets every combination of settings take turns with the choice: its regret is the choice's time
over the best's, from medians of paired steps. Trials are in this process there, to be many.
No new trial begins after `--limit` seconds; what was not tried is said.
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.train_step import command
from tests.trainer.synthetic_records import write_dataset

from evofeed.errors import InputError
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.tune.search import Settings, Trial, alternatives, applied, ratio, search
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
    options = parser.parse_args()
    began = time.perf_counter()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-tune-"))
    data = [str(folder / "data")]
    write_dataset(folder / "data", 16, tiny=options.preset == "tiny")
    run = PRESETS[options.preset]().train.replace(accumulate=options.accumulate)
    cuda = options.device == "cuda"
    result: dict[str, Any] = {
        "benchmark": "tune",
        "command": command(__file__),
        "device": torch.cuda.get_device_name() if cuda else "CPU", "torch": torch.__version__,
        "python": platform.python_version(), "load": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "preset": options.preset, "ranks": options.ranks, "accumulate": options.accumulate,
        "steps": options.steps, "trials": [],
    }  # fmt: skip

    def keep() -> None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    def measure(settings: Settings) -> Trial:
        if time.perf_counter() - began > options.limit:
            return Trial(error="not tried: the benchmark's time is over")
        config = applied(run, settings, options.ranks)
        if options.all:
            return run_trial(config, data, options.steps, options.device)
        return launch(
            config, data, steps=options.steps, ranks=options.ranks, device=options.device,
            limit=120.0,
        )  # fmt: skip

    def report(settings: Settings, trial: Trial) -> None:
        result["trials"].append({"settings": asdict(settings), **asdict(trial)})
        print(json.dumps(result["trials"][-1]), flush=True)
        keep()

    values = alternatives(options.ranks, cuda, lossy=False)
    found = search(run, measure, values, ranks=options.ranks, rounds=options.rounds, report=report)
    result |= {"default": asdict(found.default), "chosen": asdict(found.chosen)}
    result |= {"ratios": found.ratios, "seconds_in_all": round(time.perf_counter() - began, 1)}
    keep()
    if options.all:
        result |= regret(run, found.chosen, values, data, options)
        keep()
    print(json.dumps({name: result[name] for name in result if name != "trials"}), flush=True)


def regret(
    run: Any, chosen: Settings, values: Any, data: list[str], options: argparse.Namespace
) -> dict[str, Any]:
    """Every combination beside the choice, in turn, each pair next to each other in time."""
    every = []
    for combination in itertools.product(*values.values()):
        settings = replace(chosen, **dict(zip(values, combination, strict=True)))
        try:
            every.append((settings, applied(run, settings, options.ranks)))
        except InputError:
            continue
    own = applied(run, chosen, options.ranks)
    ratios: dict[Settings, list[float]] = {settings: [] for settings, _ in every}
    for number in range(options.rounds + 1):
        for settings, config in every:
            pair = [own, config] if number % 2 else [config, own]
            trials = [run_trial(one, data, options.steps, options.device) for one in pair]
            theirs, ours = reversed(trials) if number % 2 else trials
            ratios[settings].append(ratio(theirs, ours))
    medians = {settings: statistics.median(some) for settings, some in ratios.items()}
    return {
        "all": [
            {"settings": asdict(settings), "time_over_the_choice": some}
            for settings, some in ratios.items()
        ],
        "choice_beside_itself": medians[chosen],
        "regret": max(1 / min(medians.values()) - 1, 0.0),
    }


if __name__ == "__main__":
    main()

"""`evofeed tune`."""

from __future__ import annotations

import json
import os
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evofeed.base.options import Device, Json

if TYPE_CHECKING:
    from evofeed.trainer.tune.search import Settings, Trial


def tune(
    config: Annotated[str, typer.Argument(help="A YAML file or a preset's name.")],
    dataset: Annotated[list[str], typer.Option(help="URI of the dataset; repeatable.")],
    out: Annotated[
        Path | None, typer.Option(help="YAML to write; default: CONFIG.tuned.yaml.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of winner and default.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Tune only this setting; repeatable.")
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds per trial, at most.")] = 300.0,
    device: Device = "",
    as_json: Json = False,
) -> None:
    """Measure which settings of a run are fastest on this machine, and write them as YAML.

    Varies axial size, CUDA graphs, recomputation, batch size and prefetch; the samples
    of a step stay the same. Start it once: it starts a rank on each GPU.

    Example: evofeed tune run.yaml --dataset data/ --out tuned.yaml
    """
    import torch
    import yaml

    from evofeed.base.files import write_atomic
    from evofeed.trainer.presets import PRESETS
    from evofeed.trainer.run.build import build_loader
    from evofeed.trainer.run.distributed import World
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.tune.search import alternatives, applied, launch, search

    if "RANK" in os.environ:
        raise typer.BadParameter("not under torchrun: it starts the ranks itself")
    run = load_config(config)
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    ranks, device_type = max(gpus, 1), "cuda" if gpus else "cpu"
    values = alternatives(ranks, gpus > 0)
    for name in set(only or values) - set(values):
        raise typer.BadParameter(f"--only {name}: on this machine use {', '.join(values)}")
    values = {name: options for name, options in values.items() if name in (only or values)}
    target = out or Path(f"{Path(config).stem}.tuned.yaml")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent} for {target.name}")
    loader = build_loader(run, dataset, World())  # fails on an unreadable dataset before any trial
    getattr(loader, "close", lambda: None)()

    def measure(settings: Settings) -> Trial:
        trial = launch(run, settings, dataset, ranks=ranks, device=device_type, limit=limit)
        label = ", ".join(f"{name} {getattr(settings, name)}" for name in values)
        text = f"not timed: {label}: {trial.error}"
        if trial.seconds:
            step, memory = statistics.fmean(trial.seconds) * 1e3, trial.peak_memory / 2**30
            waiting = f"{trial.wait_share:.1%} waiting"
            text = f"{label}: {step:.1f} ms a step, {memory:.1f} GiB, {waiting}"
        print(text, file=sys.stderr if as_json else sys.stdout)
        return trial

    result = search(run, measure, values, rounds)
    failed = all(trial.error for _, trial in result.trials)
    ratio = statistics.median(result.ratios) if result.ratios else None
    if result.chosen == result.default:
        ratio, summary = 1.0, "the default stays"
    else:
        summary = f"{ratio:.3f} of the default's time" if ratio else "the default did not run"
    name = torch.cuda.get_device_name() if gpus else "CPU"
    headline = f"evofeed tune, {datetime.now(UTC).date()}, {ranks} x {name}: {summary}"
    if not failed:  # the differences from the preset, as YAML that `evofeed train` reads
        tuned, preset = applied(run, result.chosen, ranks), PRESETS[run.preset]().train.to_dict()
        changed = {key: value for key, value in tuned.to_dict().items() if value != preset[key]}
        plain = json.loads(json.dumps({"preset": run.preset, **changed}))  # tuples become lists
        write_atomic(target, f"# {headline}\n{yaml.safe_dump(plain, sort_keys=False)}")
    if as_json:
        content = {
            "out": str(target),
            "default": result.default._asdict(),
            "chosen": result.chosen._asdict(),
            "ratio_to_default": ratio,
            "ratios": result.ratios,
            "trials": [{"settings": s._asdict(), **t._asdict()} for s, t in result.trials],
        }
        print(json.dumps(content))
    else:
        print(result.trials[0][1].error if failed else f"{target}: {headline}")
    if failed:
        raise typer.Exit(1)

"""`evofeed tune`."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from evofeed.base.options import Json, usable_device

if TYPE_CHECKING:
    from evofeed.trainer.config import TrainConfig
    from evofeed.trainer.tune.search import Settings, Trial


def tune(
    config: Annotated[str, typer.Argument(help="A YAML file or a preset's name.")],
    dataset: Annotated[list[str] | None, typer.Option(help="URI of the dataset; several.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="YAML to write; default: CONFIG.tuned.yaml.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Processes of a run; default: one a GPU, else one.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a trial that count.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of winner and default.")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="Tune this setting alone; several: these.")
    ] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds a trial may take.")] = 300.0,
    device: Annotated[
        str, typer.Option(help="cpu or cuda; default: GPUs if there are.", callback=usable_device)
    ] = "",
    as_json: Json = False,
) -> None:
    """Measure which settings of a run are fastest on this machine, and write them as YAML.

    Axial size, CUDA graphs, recomputation, batch, batches read ahead and overlap;
    samples of a step stay the same. Start it once, it starts the ranks.

    Example: evofeed tune run.yaml --dataset data/ --out tuned.yaml
    """
    import torch

    from evofeed.trainer.run.build import build_loader
    from evofeed.trainer.run.distributed import World
    from evofeed.trainer.run.settings import load_config
    from evofeed.trainer.tune.search import alternatives, applied, search
    from evofeed.trainer.tune.trial import launch

    if not dataset:
        raise typer.BadParameter("tuning needs --dataset")
    if "RANK" in os.environ:
        raise typer.BadParameter("not under torchrun: it starts the ranks itself, see --ranks")
    run = load_config(config)
    cards = torch.cuda.device_count() if device != "cpu" else 0
    place = device or ("cuda" if cards else "cpu")
    ranks = ranks or max(cards, 1)
    if place == "cuda" and ranks > cards:
        raise typer.BadParameter(f"--ranks {ranks}, but there are {cards} GPUs")
    values = alternatives(ranks, place == "cuda")
    for name in set(only or values) - set(values):
        raise typer.BadParameter(f"--only {name}: here there are {', '.join(values)}")
    values = {name: options for name, options in values.items() if name in (only or values)}
    target = out or Path(f"{Path(config).stem}.tuned.yaml")
    if not target.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {target.parent} for {target.name}")

    loader = build_loader(run, dataset, World())  # what cannot be read is said before any trial
    getattr(loader, "close", lambda: None)()

    def measure(settings: Settings) -> Trial:
        changed = applied(run, settings, ranks)
        return launch(changed, dataset, steps=steps, ranks=ranks, device=place, limit=limit)

    def report(settings: Settings, trial: Trial) -> None:
        print(_line(settings, trial, values), file=sys.stderr if as_json else sys.stdout)

    found = search(run, measure, values, ranks=ranks, rounds=rounds, report=report)
    failed = all(trial.error for _, trial in found.trials)
    ratio = statistics.median(found.ratios) if found.ratios else None
    if found.chosen == found.default:
        ratio, said = 1.0, "the default stays"
    else:
        said = f"{ratio:.3f} of the default's time" if ratio else "the default did not run"
    name = torch.cuda.get_device_name() if place == "cuda" else "CPU"
    headline = f"evofeed tune, {datetime.now(UTC).date()}, {ranks} x {name}: {said}"
    if not failed:
        _write(target, run, applied(run, found.chosen, ranks), headline)
    if as_json:
        content = {
            "out": str(target),
            "default": found.default._asdict(),
            "chosen": found.chosen._asdict(),
            "ratio_to_default": ratio,
            "ratios": found.ratios,
            "trials": [{"settings": s._asdict(), **trial._asdict()} for s, trial in found.trials],
        }
        print(json.dumps(content))
    else:
        print(found.trials[0][1].error if failed else f"{target}: {headline}")
    if failed:
        raise typer.Exit(1)


def _line(settings: Settings, trial: Trial, names: Iterable[str]) -> str:
    """One trial in words."""
    named = ", ".join(f"{name} {getattr(settings, name)}" for name in names)
    if trial.error:
        return f"not timed: {named}: {trial.error}"
    step = statistics.fmean(trial.seconds) * 1e3
    memory = trial.peak_memory / 2**30
    return f"{named}: {step:.1f} ms a step, {memory:.1f} GiB, {trial.wait_share:.1%} waiting"


def _write(path: Path, run: TrainConfig, tuned: TrainConfig, headline: str) -> None:
    """What differs from the preset, as YAML that `evofeed train` reads."""
    import yaml

    from evofeed.base.files import write_atomic
    from evofeed.trainer.presets import PRESETS

    usual = PRESETS[run.preset]().train.to_dict()
    changed = {name: value for name, value in tuned.to_dict().items() if value != usual[name]}
    plain = json.loads(json.dumps({"preset": run.preset, **changed}))  # tuples are YAML's lists
    write_atomic(path, f"# {headline}\n{yaml.safe_dump(plain, sort_keys=False)}")

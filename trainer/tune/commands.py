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
    cards = torch.cuda.device_count() if device != "cpu" else 0
    ranks, place = max(cards, 1), "cuda" if cards else "cpu"
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
        made = launch(run, settings, dataset, ranks=ranks, device=place, limit=limit)
        named = ", ".join(f"{name} {getattr(settings, name)}" for name in values)
        said = f"not timed: {named}: {made.error}"
        if made.seconds:
            step, memory = statistics.fmean(made.seconds) * 1e3, made.peak_memory / 2**30
            said = f"{named}: {step:.1f} ms a step, {memory:.1f} GiB, {made.wait_share:.1%} waiting"
        print(said, file=sys.stderr if as_json else sys.stdout)
        return made

    found = search(run, measure, values, rounds)
    failed = all(made.error for _, made in found.trials)
    ratio = statistics.median(found.ratios) if found.ratios else None
    if found.chosen == found.default:
        ratio, said = 1.0, "the default stays"
    else:
        said = f"{ratio:.3f} of the default's time" if ratio else "the default did not run"
    name = torch.cuda.get_device_name() if cards else "CPU"
    headline = f"evofeed tune, {datetime.now(UTC).date()}, {ranks} x {name}: {said}"
    if not failed:  # what differs from the preset, as YAML that `evofeed train` reads
        tuned, usual = applied(run, found.chosen, ranks), PRESETS[run.preset]().train.to_dict()
        changed = {key: value for key, value in tuned.to_dict().items() if value != usual[key]}
        plain = json.loads(json.dumps({"preset": run.preset, **changed}))  # tuples: YAML's lists
        write_atomic(target, f"# {headline}\n{yaml.safe_dump(plain, sort_keys=False)}")
    if as_json:
        content = {
            "out": str(target),
            "default": found.default._asdict(),
            "chosen": found.chosen._asdict(),
            "ratio_to_default": ratio,
            "ratios": found.ratios,
            "trials": [{"settings": s._asdict(), **made._asdict()} for s, made in found.trials],
        }
        print(json.dumps(content))
    else:
        print(found.trials[0][1].error if failed else f"{target}: {headline}")
    if failed:
        raise typer.Exit(1)

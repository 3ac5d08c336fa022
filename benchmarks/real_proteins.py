"""Trains a small model on real chains and measures it on them and on unseen clusters.

    evofeed cluster chains.fasta clusters.tsv --identity 0.3 --coverage 0.5
    evofeed featurize raw/ data/ --structures mmcif/ --clusters clusters.tsv
    evofeed snapshots split data/ --clusters clusters.tsv --share unseen=0.2
    evofeed snapshots select data/ train --apart-from data/@unseen --clusters clusters.tsv
    python benchmarks/real_proteins.py data/ --seconds 170 --out real.json --picture real.png

The recipe is the speedrun's if `--recipe` names no other file or preset. At every validation
lDDT-Ca of the averaged weights on as many training chains and on the unseen ones; the gap between
the two is what was learnt by heart.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from evofeed.files import write_atomic
from evofeed.store import Dataset
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.run.build import build_loader, build_model, set_precision
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.settings import load_config
from evofeed.trainer.run.train import run
from evofeed.trainer.run.validation import Validator, held_out

RECIPE = Path(__file__).parent / "speedrun" / "recipe.yaml"
TERMS = ("loss", "fape", "distogram", "masked_msa", "supervised_chi")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", help="dataset with the refs `train` and `unseen`")
    parser.add_argument("--seconds", type=float, default=170, help="of training and validating")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--validate-every", type=int, default=100)
    parser.add_argument("--batches", type=int, default=5, help="of each of the two measurements")
    parser.add_argument("--recipe", default=str(RECIPE), help="or a preset's name")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


def settings(options: argparse.Namespace) -> TrainConfig:
    return load_config(options.recipe).replace(
        steps=options.steps,
        validate_every=options.validate_every,
        validate_batches=options.batches,
    )


def train(options: argparse.Namespace, out: Path) -> tuple[TrainConfig, list[dict[str, Any]]]:
    """Run until the time is over; the log's lines."""
    config = settings(options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = World(rank=0, size=1, device=device)
    set_precision(config)
    model, loss = build_model(config, device)
    known, unseen = (Dataset.open(options.data, ref) for ref in ("train", "unseen"))
    seen = Validator(config, model, held_out(config, known, world), world)
    new = Validator(config, model, held_out(config, unseen, world), world)

    def validate() -> dict[str, float]:
        return {**new(), **{f"train_{name}": value for name, value in seen().items()}}

    stop = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
    stop.daemon = True
    stop.start()
    loader = build_loader(config, known, world)
    run(config, model, loss, loader, world=world, out=out, validate=validate)
    stop.cancel()
    return config, list(read_steps(out))


def draw(found: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    losses = found["losses"]
    for term in ("distogram", "masked_msa", "fape"):
        left.plot([x["step"] for x in losses], [x[term] for x in losses], label=term, linewidth=1)
    left.set_xlabel("step")
    left.set_ylabel("loss, mean of 20 steps")
    left.legend(fontsize=8)
    curve = found["curve"]
    for key, label in (("train_lddt_ca", "training chains"), ("lddt_ca", "unseen clusters")):
        right.plot([x["step"] for x in curve], [x[key] for x in curve], "o-", ms=3, label=label)
    right.set_xlabel("step")
    right.set_ylabel("lDDT-Cα")
    right.set_ylim(0, 1)
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    options = arguments()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        config, steps = train(options, Path(folder) / "run")
    curve = [{"step": s["step"], **s["metrics"]} for s in steps if "metrics" in s]
    losses = []
    for first in range(0, len(steps), 20):
        some = steps[first : first + 20]
        means = {t: sum(s["terms"][t] for s in some) / len(some) for t in TERMS}
        losses.append({"step": some[len(some) // 2]["step"], **means})
    parts = {ref: Dataset.open(options.data, ref) for ref in ("train", "unseen")}
    gpu = torch.cuda.is_available()
    found = {
        "command": f"benchmarks/real_proteins.py DATA --seconds {options.seconds:g} "
        f"--validate-every {options.validate_every} --batches {options.batches} "
        f"--recipe {Path(options.recipe).name}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "chains": {ref: len(part) for ref, part in parts.items()},
        "names": {ref: sorted(part) for ref, part in parts.items()},
        "steps": len(steps),
        "seconds": round(time.perf_counter() - began, 1),
        "config": config.to_dict(),
        "curve": curve,
        "losses": losses,
    }
    write_atomic(options.out, json.dumps(found) + "\n")
    if options.picture:
        draw(found, options.picture)
    print(json.dumps(curve[-1] if curve else {}), len(steps), "steps")


if __name__ == "__main__":
    main()

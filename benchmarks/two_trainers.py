"""OpenFold's model, loss and optimizer beside evofeed's: same weights, same batches, step by step.

    python benchmarks/two_trainers.py evofeed --dataset DATA --validation HELD_OUT \
        --precision bf16 --steps 200 --dropout 1 --out a.json
    python benchmarks/two_trainers.py openfold --openfold OPENFOLD ... --dropout 1 --out b.json

Both start from the weights that seed 0 draws and take the batches of one loader (recycles drawn
for each batch; OpenFold's through `openfold_batch`). `evofeed` is `evofeed train`'s own loop.
`openfold` is its model, `AlphaFoldLoss`, `torch.optim.Adam`, `AlphaFoldLRScheduler`,
`ExponentialMovingAverage` and gradient clipping, in the order of its `OpenFoldWrapper`; Lightning,
which only calls them, is left out. `--dropout` seeds the dropout masks alone, -1 turns dropout
off: what two dropout seeds of one trainer differ by is the measure of what two trainers may.
Curves are written as the runs go; with `--seconds` and `--state` OpenFold's goes on another time.
With `--start` either begins at a checkpoint of evofeed's (`--keep`, `--keep-at`): what lies apart
then was not brought along. The recorded runs' data:

    evofeed synth raw/ --chains 240 --seed 7 --mean-length 200 --mean-depth 400 --mean-members 4
    evofeed featurize raw/ DATA

Validation: averaged weights, four recycles, on chains that are not trained on.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import shutil
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from evofeed.base.files import write_atomic
from evofeed.store import Dataset
from evofeed.trainer.config import TrainConfig
from evofeed.trainer.log.runlog import read_steps
from evofeed.trainer.presets import PRESETS
from evofeed.trainer.run.build import build_loader, build_model, build_plain, set_precision
from evofeed.trainer.run.checkpoint import CHECKPOINTS
from evofeed.trainer.run.distributed import World
from evofeed.trainer.run.train import run
from evofeed.trainer.run.validation import Validator, held_out

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.two_trainers_openfold import run_openfold, terms_without_dropout

_WRITE_EVERY = 3.0  # seconds
NO_DROPOUT = {
    "template": {"dropout_rate": 0.0},
    "extra_msa": {"msa_dropout": 0.0, "pair_dropout": 0.0},
    "evoformer": {"msa_dropout": 0.0, "pair_dropout": 0.0},
    "structure_module": {"dropout_rate": 0.0},
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("trainer", choices=("evofeed", "openfold"))
    parser.add_argument("--openfold", type=Path, help="a checkout, for `openfold`")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--dropout", type=int, required=True, help="seed of the masks; -1: no dropout"
    )
    parser.add_argument("--validate-every", type=int, default=50)
    parser.add_argument("--validate-batches", type=int, default=8)
    parser.add_argument(
        "--checkpoint-blocks", action="store_true", help="OpenFold recomputes blocks"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="OpenFold stops after so many")
    parser.add_argument(
        "--state", type=Path, help="where OpenFold stops and goes on from next time"
    )
    parser.add_argument("--keep", type=Path, help="evofeed's run, with a checkpoint at --keep-at")
    parser.add_argument("--keep-at", type=int, default=0)
    parser.add_argument("--start", type=Path, help="begin at this checkpoint of evofeed's")
    parser.add_argument("--loader", default="{}", help="JSON of loader settings that differ")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def settings(options: argparse.Namespace) -> TrainConfig:
    """AF2's initial training as it is, but for the run's length and validations."""
    config = PRESETS["initial_training"]().train
    return config.replace(
        seed=0,
        steps=options.steps,
        precision=options.precision,
        checkpoint_every=options.keep_at,
        profile_steps=0,
        validate_every=options.validate_every,
        validate_batches=options.validate_batches,
        model=NO_DROPOUT if options.dropout < 0 else {},
        loader=json.loads(options.loader),
    )


def run_evofeed(config: TrainConfig, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """`evofeed train` itself, with another seed for dropout than for weights and batches."""
    model, loss = build_model(config, world.device)
    loader = build_loader(config, options.dataset, world)
    chains = held_out(config, Dataset.open(options.validation), world)
    validate = Validator(config, model, chains, world)
    start: dict[str, float] = {}
    if not options.start:
        first = next(iter(build_loader(config, options.dataset, world)))
        start = terms_without_dropout(config, model, loss, first)
    options.snapshots = loader.state_dict()["snapshots"]
    dropout = config.replace(seed=max(options.dropout, 0))
    with tempfile.TemporaryDirectory() as folder:
        out = options.keep or Path(folder) / "run"
        if options.start:
            _begin_at(options.start, out, dropout.seed)
        parts = {"world": world, "out": out, "validate": validate}
        with _written_meanwhile(options, world, lambda: {"start": start, "steps": _lines(out)}):
            run(dropout, model, loss, loader, resume=bool(options.start), **parts)
        return {"start": start, "steps": _lines(out)}


def _lines(run_folder: Path) -> list[dict[str, Any]]:
    """What both trainers tell of their steps, of those that evofeed has done."""
    return [
        {
            "step": line["step"],
            "terms": line["terms"],
            "norm": line["norm"],
            "recycles": line["recycles"],
            "seconds": sum(line["seconds"].values()) - line["seconds"].get("validation", 0.0),
            **({"metrics": line["metrics"]} if "metrics" in line else {}),
        }
        for line in read_steps(run_folder)
    ]


@contextmanager
def _written_meanwhile(
    options: argparse.Namespace, world: World, found: Callable[[], dict[str, Any]]
) -> Iterator[None]:
    """Write the result every few seconds, so that a run that is cut off leaves its steps."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(_WRITE_EVERY):
            if (now := found())["steps"]:
                _write(options, world, now)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _begin_at(checkpoint: Path, out: Path, seed: int) -> None:
    """Make a run that continues at another run's checkpoint with dropout masks of its own."""
    copy = out / CHECKPOINTS / checkpoint.name
    shutil.copytree(checkpoint, copy)
    state = json.loads((copy / "state.json").read_text())
    state["state"]["seed"] = seed
    (copy / "state.json").write_text(json.dumps(state))


def train(options: argparse.Namespace) -> None:
    """Run one trainer and write what it did."""
    config = settings(options)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = World(rank=0, size=1, device=device)
    set_precision(config)
    with torch.device("meta"):
        options.parameters = sum(p.numel() for p in build_plain(config).parameters())
    write = functools.partial(_write, options, world)
    if options.trainer == "evofeed":
        write(run_evofeed(config, options, world))
    else:
        write(run_openfold(config, options, world, write))


def _write(options: argparse.Namespace, world: World, found: Mapping[str, Any]) -> None:
    """Put what was done so far where the result shall be."""
    gpu = world.device.type == "cuda"
    result = {
        "trainer": options.trainer,
        "precision": options.precision,
        "dropout": options.dropout,
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "parameters": options.parameters,
        "dataset": options.snapshots,
        "first_step": found["steps"][0]["step"],
        "seconds_per_step": statistics.median(s["seconds"] for s in found["steps"]),
        "peak_memory": torch.cuda.max_memory_allocated() if gpu else None,
        **found,
    }
    write_atomic(options.out, json.dumps(result))


def main() -> None:
    train(arguments())


if __name__ == "__main__":
    main()

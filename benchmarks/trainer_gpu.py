"""Trains a preset on synthetic chains through the real loader and keeps the run report.

    PYTHONPATH=src python benchmarks/trainer_gpu.py --out OUT --steps 30
    PYTHONPATH=src torchrun --nproc-per-node 4 benchmarks/trainer_gpu.py --out OUT --steps 30
    PYTHONPATH=src python benchmarks/trainer_gpu.py --out OUT --preset tiny --chains 8 --steps 20

Needs what training needs: torch, triton, numpy, numba, pyarrow, xxhash, safetensors,
PyYAML. Several cells in one call:

    ... --cells bf16:fused bf16:torch fp32:torch

Each cell (precision:kernels, then `:eager` for no CUDA graphs, `:deterministic`, `:b4` for four
samples at once, `:ckpt` to recompute activations) is one run in a process of its own; under
torchrun all cells run in turn, in one. It gives `OUT/trainer_gpu.<cell>.json` and `.png`;
`OUT/trainer_gpu.txt` holds all tables, `OUT/cells.json` a line each: time, samples a second,
memory. A cell whose parts do not add up to the wall time within 2 % fails.

    ... --recycles 0 --steps 10 --profile-steps 0 --cells fp16:fused bf16:fused bf16:fused:b2

N ranks are one rank that accumulates N passes (same samples, same dropout):

    ... --out OUT --steps 12 --recycles 0 --accumulate 2
    torchrun --nproc-per-node 2 ... --out OUT --steps 12 --recycles 0
    ... --out OUT --compare     # largest relative difference of the losses, all JSONs in OUT
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MOST_UNACCOUNTED = 0.02
# FLOPs of one pass at AF2's initial-training shapes (crop 256, 128 + 1024 rows, 4 templates),
# counted on a CPU by `trainer/report/flops.py`: counting again would cost a GPU half a minute.
INITIAL_TRAINING_FLOPS = {"forward": 11973048897536.0, "forward_backward": 35910420443136.0}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON, table and page")
    parser.add_argument("--preset", default="initial_training")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--chains", type=int, default=24)
    parser.add_argument(
        "--cells",
        nargs="+",
        default=["bf16:fused"],
        help="precision:kernels[:eager][:b4][:ckpt]",
    )
    parser.add_argument("--recycles", type=int, help="passes without gradient; default: 0 to 3")
    parser.add_argument("--accumulate", type=int, default=1, help="passes per rank and step")
    parser.add_argument("--compare", action="store_true", help="losses of the JSONs in --out")
    parser.add_argument("--profile-steps", type=int, default=2, help="steps to look into")
    parser.add_argument("--dataset", help="URI of a dataset instead of synthetic chains")
    parser.add_argument("--limit", type=float, default=480, help="seconds a cell may take")
    parser.add_argument("--check-resume", action="store_true", help="8 steps against 4 and 4")
    parser.add_argument("--cell", help=argparse.SUPPRESS)  # one run, started by ourselves
    return parser.parse_args()


def main() -> None:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.compare:
        compare(options.out)
        return
    if "RANK" in os.environ or options.cell:
        from evofeed.trainer.run.distributed import join_world

        with join_world():  # once: torchrun's store cannot be joined again after leaving
            cells = [options.cell] if options.cell else options.cells
            failed = [cell for cell in cells if not done(options, cell)]
        if failed:
            raise SystemExit(f"failed: {' '.join(failed)}")
        return
    failed = []
    for cell in options.cells:
        own = [arg for arg in sys.argv[1:] if arg not in (*options.cells, "--cells")]
        command = [sys.executable, __file__, *own, "--cell", cell]
        if subprocess.run(command, timeout=options.limit, check=False).returncode:
            failed.append(cell)
    if failed:
        raise SystemExit(f"failed: {' '.join(failed)}")


def done(options: argparse.Namespace, cell: str) -> bool:
    """Runs a cell; one that does not fit or add up must not lose the others."""
    import torch

    from evofeed.base.errors import TrainerError

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        run_cell(options, cell)
    except (torch.OutOfMemoryError, TrainerError) as error:  # the latter where `train` explains it
        why = str(error).splitlines()[0]
        keep(options, {"cell": cell, "error": why})
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise  # the others wait in a collective
    except Unaccounted as error:
        why = str(error)
    else:
        return True
    print(f"{cell}: {why}", flush=True)
    return False


class Unaccounted(Exception):
    """Parts of the steps that do not add up to the wall time."""


def keep(options: argparse.Namespace, row: dict[str, Any]) -> None:
    """A line of `OUT/cells.json`; a later cell that dies loses nothing."""
    path = options.out / "cells.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*rows, row], indent=1) + "\n")


def settings(options: argparse.Namespace, cell: str) -> Any:
    from evofeed.trainer.config import OptimConfig
    from evofeed.trainer.presets import PRESETS

    precision, kernels, *flags = cell.split(":")
    loader: dict[str, Any] = {"batch_size": batch_size(cell), "weighted": False}
    if options.recycles is not None:
        loader |= {"max_recycling_iters": options.recycles, "uniform_recycling": False}
    return PRESETS[options.preset]().train.replace(
        steps=options.steps, accumulate=options.accumulate, precision=precision, kernels=kernels,
        loader=loader,
        cuda_graphs="eager" not in flags, deterministic="deterministic" in flags,
        profile_steps=options.profile_steps,
        checkpoint_every=0, validate_every=0,
        optim=OptimConfig(warmup_steps=1),  # full rate at once: wrong gradients would show
        model={"activation_checkpointing": "ckpt" in flags},
    )  # fmt: skip


def batch_size(cell: str) -> int:
    """Of a cell's name: `:b4` is four."""
    found = re.search(r":b(\d+)(:|$)", cell)
    return int(found[1]) if found else 1


def run_cell(options: argparse.Namespace, cell: str) -> None:
    import torch

    from evofeed.trainer.report.page import write_page
    from evofeed.trainer.report.run_report import report_rows, write_report
    from evofeed.trainer.run.train import train

    if options.check_resume:
        check_resume(options, cell)
        return
    scratch = fresh(options, cell)
    known = options.preset == "initial_training" and batch_size(cell) == 1
    flops = INITIAL_TRAINING_FLOPS if known else None
    result = train(settings(options, cell), dataset(options), out=scratch, flops=flops)
    if int(os.environ.get("RANK", "0")):
        return
    report = write_report(scratch)
    if torch.cuda.is_available():
        report["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    report |= {
        "losses": result.losses,
        "overflows": result.overflows,
        "cell": cell,
        "steps_seconds": _step_seconds(scratch),
    }
    name = _name(options, cell)
    (options.out / f"trainer_gpu.{name}.json").write_text(json.dumps(report, indent=1))
    table = "\n".join(f"{label:28} {text}" for label, text in report_rows(report))
    memory = report.get("peak_memory_bytes", 0) / 2**30
    table = f"== {name}: peak memory {memory:.1f} GiB\n{table}\n"
    print(table, flush=True)
    with (options.out / "trainer_gpu.txt").open("a") as file:
        file.write(table)
    write_page([scratch], options.out / f"trainer_gpu.{name}.html")
    keep(options, cell_row(options, cell, report))
    left = report["breakdown"]["unaccounted_share"]
    if abs(left) > MOST_UNACCOUNTED:
        raise Unaccounted(f"{left:.2%} of the wall time is in no part of a step")


def cell_row(options: argparse.Namespace, cell: str, report: dict[str, Any]) -> dict[str, Any]:
    """What a cell's run comes to; without the steps that compile, record or are looked into."""
    from evofeed.trainer.report.run_report import training_seconds

    world = int(os.environ.get("WORLD_SIZE", "1"))
    plain = report["steps_seconds"][3 : options.steps - options.profile_steps]
    taken = sorted(round(1e3 * training_seconds(step), 2) for step in plain)
    samples = batch_size(cell) * options.accumulate * world
    row: dict[str, Any] = {"cell": cell, "samples_a_step": samples, "steps": len(taken)}
    if taken:
        median = statistics.median(taken)
        row |= {
            "step_ms": {"median": round(median, 2), "min": taken[0], "max": taken[-1]},
            "samples_per_second": round(1e3 * samples / median, 3),
        }
    run = report["run"]
    return row | {
        "peak_gib": round(report.get("peak_memory_bytes", 0) / 2**30, 2),
        "unaccounted_share": round(report["breakdown"]["unaccounted_share"], 4),
        "losses": [round(loss, 4) for loss in report["losses"]],
        "overflows": report["overflows"],
        "device": run.get("device"), "versions": run.get("versions"), "date": run.get("date"),
    }  # fmt: skip


def compare(folder: Path) -> None:
    """How far the losses of runs over the same samples are from those of the longest."""
    runs = {
        path.stem: json.loads(path.read_text())["losses"]
        for path in sorted(folder.glob("trainer_gpu.*.json"))
    }
    wanted = max(runs.values(), key=len)
    found: dict[str, Any] = {}
    for name, losses in runs.items():  # one that was cut short is compared as far as it came
        pairs = zip(wanted, losses, strict=False)
        worst = max(abs(a - b) / abs(a) for a, b in pairs)
        found[name] = {
            "losses_compared": len(losses), "max_relative_difference": worst, "losses": losses,
        }  # fmt: skip
    (folder / "compared.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1), flush=True)


def check_resume(options: argparse.Namespace, cell: str) -> None:
    """Losses of 8 steps against 4 steps, a checkpoint and 4 more; and of 8 steps once again."""
    import torch

    from evofeed.trainer.run.train import train

    config, data = settings(options, cell).replace(profile_steps=0), dataset(options)
    whole, again, parts = (fresh(options, f"{cell}-{part}") for part in ("whole", "again", "parts"))
    losses = train(config.replace(steps=8), data, out=whole).losses
    repeated = train(config.replace(steps=8), data, out=again).losses
    stopped = train(config.replace(steps=4), data, out=parts).losses
    stopped += train(config.replace(steps=8), data, out=parts, resume=True).losses

    def difference(other: list[float]) -> float:
        return max(abs(a - b) / abs(a) for a, b in zip(losses, other, strict=True))

    found = {
        "command": f"python benchmarks/trainer_gpu.py --out OUT --check-resume --cells {cell}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "cell": cell,
        "losses": losses,
        "resumed_max_relative_difference": difference(stopped),
        "repeated_max_relative_difference": difference(repeated),
    }
    if int(os.environ.get("RANK", "0")) == 0:
        print(json.dumps(found), flush=True)
        path = options.out / f"trainer_resume.{_name(options, cell)}.json"
        path.write_text(json.dumps(found, indent=1))


def fresh(options: argparse.Namespace, cell: str) -> Path:
    """An empty folder for a run; the same on every rank."""
    folder = Path(tempfile.gettempdir()) / f"evofeed-trainer-{_name(options, cell)}"
    if int(os.environ.get("RANK", "0")) == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return folder


def dataset(options: argparse.Namespace) -> str:
    """URI of the dataset, written by the first rank if there is none yet."""
    if options.dataset:
        return str(options.dataset)
    sys.path.insert(0, str(HERE.resolve().parent))
    from tests.trainer.synthetic_records import write_dataset

    tiny = options.preset == "tiny"
    uri = Path(tempfile.gettempdir()) / f"evofeed-synthetic-{options.chains}{'-tiny' * tiny}"
    done = uri.with_suffix(".done")
    if int(os.environ.get("RANK", "0")) == 0 and not done.exists():
        write_dataset(uri, options.chains, tiny=tiny)
        done.touch()
    while not done.exists():
        time.sleep(0.1)
    return str(uri)


def _name(options: argparse.Namespace, cell: str) -> str:
    parts = [options.preset, cell.replace(":", "_"), f"x{os.environ.get('WORLD_SIZE', '1')}"]
    if options.recycles is not None:
        parts.append(f"r{options.recycles}")
    if options.accumulate > 1:
        parts.append(f"a{options.accumulate}")
    return ".".join(parts)


def _step_seconds(folder: Path) -> list[dict[str, Any]]:
    from evofeed.trainer.log.runlog import read_steps

    return [
        {"step": line["step"], "recycles": line.get("recycles"), "seconds": line["seconds"]}
        for line in read_steps(folder)
    ]


if __name__ == "__main__":
    main()

"""Trains a preset on synthetic chains through the real loader and keeps the run report.

    PYTHONPATH=src python benchmarks/trainer_gpu.py --out OUT --steps 30
    PYTHONPATH=src torchrun --nproc-per-node 4 benchmarks/trainer_gpu.py --out OUT --steps 30
    PYTHONPATH=src python benchmarks/trainer_gpu.py --out OUT --preset tiny --chains 8 --steps 20

Needs what training needs: torch, triton, numpy, numba, pyarrow, xxhash, safetensors,
PyYAML; matplotlib for the picture, if there. Several cells in one call:

    ... --cells bf16:fused bf16:torch fp32:torch

Each cell (precision:kernels, then `:eager` for no CUDA graphs, `:whole` to average the
gradient in one piece after the backward pass, `:deterministic`) is one run in a process
of its own; under torchrun all cells run in turn. It gives
`OUT/trainer_gpu.<cell>.json` and `.png`; `OUT/trainer_gpu.txt` holds all tables. A cell
whose parts do not add up to the wall time within 2 % fails.

N ranks are one rank that accumulates N passes (same samples, same dropout):

    ... --out OUT --steps 12 --recycles 0 --accumulate 2
    torchrun --nproc-per-node 2 ... --out OUT --steps 12 --recycles 0
    ... --out OUT --compare     # largest relative difference of the losses, all JSONs in OUT
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
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
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for JSON, table and picture"
    )
    parser.add_argument("--preset", default="initial_training")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--chains", type=int, default=24)
    parser.add_argument(
        "--cells", nargs="+", default=["bf16:fused"], help="precision:kernels[:eager][:whole]"
    )
    parser.add_argument("--recycles", type=int, help="passes without gradient; default: 0 to 3")
    parser.add_argument("--accumulate", type=int, default=1, help="passes per rank and step")
    parser.add_argument("--compare", action="store_true", help="losses of the JSONs in --out")
    parser.add_argument("--checkpointing", action="store_true", help="recompute activations")
    parser.add_argument("--batch-size", type=int, default=1)
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
            for cell in [options.cell] if options.cell else options.cells:
                run_cell(options, cell)
        return
    failed = []
    for cell in options.cells:
        own = [arg for arg in sys.argv[1:] if arg not in (*options.cells, "--cells")]
        command = [sys.executable, __file__, *own, "--cell", cell]
        done = subprocess.run(command, timeout=options.limit, check=False)
        if done.returncode:  # out of memory in one cell must not lose the others
            (options.out / f"trainer_gpu.{_name(options, cell)}.failed").write_text(str(done))
            failed.append(cell)
    if failed:
        raise SystemExit(f"failed: {' '.join(failed)}")


def settings(options: argparse.Namespace, cell: str) -> Any:
    from evofeed.trainer.config import OptimConfig
    from evofeed.trainer.presets import PRESETS

    precision, kernels, *flags = cell.split(":")
    loader: dict[str, Any] = {"batch_size": options.batch_size, "weighted": False}
    if options.recycles is not None:
        loader |= {"max_recycling_iters": options.recycles, "uniform_recycling": False}
    return PRESETS[options.preset]().train.replace(
        steps=options.steps, accumulate=options.accumulate, precision=precision, kernels=kernels,
        loader=loader,
        cuda_graphs="eager" not in flags, overlap="whole" not in flags,
        deterministic="deterministic" in flags, profile_steps=2, checkpoint_every=0,
        validate_every=0,
        optim=OptimConfig(warmup_steps=1),  # full rate at once: wrong gradients would show
        model={"activation_checkpointing": options.checkpointing},
    )  # fmt: skip


def run_cell(options: argparse.Namespace, cell: str) -> None:
    import torch

    from evofeed.trainer.report.run_report import report_rows, write_report
    from evofeed.trainer.run.train import train

    if options.check_resume:
        check_resume(options, cell)
        return
    scratch = fresh(options, cell)
    known = options.preset == "initial_training" and options.batch_size == 1
    flops = INITIAL_TRAINING_FLOPS if known else None
    result = train(settings(options, cell), dataset(options), out=scratch, flops=flops)
    if int(os.environ.get("RANK", "0")):
        return
    report = write_report(scratch)
    if torch.cuda.is_available():
        report["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    report |= {"losses": result.losses, "cell": cell, "steps_seconds": _step_seconds(scratch)}
    name = _name(options, cell)
    (options.out / f"trainer_gpu.{name}.json").write_text(json.dumps(report, indent=1))
    table = "\n".join(f"{label:28} {text}" for label, text in report_rows(report))
    memory = report.get("peak_memory_bytes", 0) / 2**30
    table = f"== {name}: peak memory {memory:.1f} GiB\n{table}\n"
    print(table, flush=True)
    with (options.out / "trainer_gpu.txt").open("a") as file:
        file.write(table)
    _picture(scratch, options.out / f"trainer_gpu.{name}.png")
    left = report["breakdown"]["unaccounted_share"]
    if abs(left) > MOST_UNACCOUNTED:
        raise SystemExit(f"{name}: {left:.2%} of the wall time is in no part of a step")


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
    if options.checkpointing:
        parts.append("ckpt")
    if options.batch_size > 1:
        parts.append(f"b{options.batch_size}")
    return ".".join(parts)


def _step_seconds(folder: Path) -> list[dict[str, Any]]:
    from evofeed.trainer.log.runlog import read_steps

    return [
        {"step": line["step"], "recycles": line.get("recycles"), "seconds": line["seconds"]}
        for line in read_steps(folder)
    ]


def _picture(folder: Path, path: Path) -> None:
    try:
        from evofeed.trainer.report.plot import plot_report

        plot_report(folder, path)
    except ImportError:
        print("no matplotlib: the picture is left out", flush=True)


if __name__ == "__main__":
    main()

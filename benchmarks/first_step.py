"""What a first step costs where nothing is compiled, with kernels compiled ahead by threads or not.

    python benchmarks/first_step.py DATASET --ranks 2 --out first_step.json

The speedrun's recipe, three times: compiled ahead with an empty Triton cache, not ahead with the
cache that left, not ahead with an empty one. The steps of all three must be equal to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from evofeed.files import write_atomic
from evofeed.trainer.log.runlog import read_steps

RECIPE = Path(__file__).parent / "speedrun" / "recipe.yaml"
_CHILD = "EVOFEED_BENCHMARK_AHEAD"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def child() -> None:
    """`evofeed train`, as it is or without compiling ahead."""
    from evofeed.cli import main
    from evofeed.trainer.run.graphs import Replay

    if os.environ[_CHILD] == "no":
        Replay.compile_ahead = lambda self, batch, device: None  # type: ignore[method-assign]
    raise SystemExit(main())


def train(options: argparse.Namespace, ahead: str, cache: Path, out: Path) -> list[dict[str, Any]]:
    """The log of one run."""
    recipe = out.with_suffix(".yaml")
    kept = [
        line
        for line in options.recipe.read_text().splitlines()
        if not line.startswith(("steps:", "validate_every:"))
    ]
    recipe.write_text("\n".join([*kept, f"steps: {options.steps}", "validate_every: 0", ""]))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(options.ranks), __file__]
    command += ["train", str(recipe), "--dataset", options.dataset, "--out", str(out)]
    command += ["--device", options.device] if options.device else []
    environment = os.environ | {_CHILD: ahead, "TRITON_CACHE_DIR": str(cache)}
    subprocess.run(command, check=True, env=environment, stdout=sys.stderr)
    return list(read_steps(out))


def numbers(step: dict[str, Any]) -> tuple[Any, ...]:
    return step["loss"], step["terms"], step["norm"]


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ways = {"ahead, cold": "yes", "not ahead, its cache": "no", "not ahead, cold": "no"}
        runs = {}
        for name, ahead in ways.items():
            cache = root / ("other" if name == "not ahead, cold" else "cold")
            runs[name] = train(options, ahead, cache, root / name.replace(", ", "_"))
    first = next(iter(runs.values()))
    gpu = torch.cuda.is_available() and options.device != "cpu"
    found = {
        "command": f"benchmarks/first_step.py DATASET --ranks {options.ranks} "
        f"--steps {options.steps} --recipe {options.recipe.name}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": f"{options.ranks} x {torch.cuda.get_device_name() if gpu else 'CPU'}",
        "processors": len(os.sched_getaffinity(0)),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "steps": len(first),
        "equal_to_the_last_bit": {
            name: sum(numbers(a) == numbers(b) for a, b in zip(first, run, strict=True))
            for name, run in runs.items()
        },
        "first_steps": {name: [step["seconds"] for step in run[:3]] for name, run in runs.items()},
    }
    write_atomic(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if _CHILD in os.environ:
        child()
    main()

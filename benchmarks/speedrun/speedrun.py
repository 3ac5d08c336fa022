"""How long until the model folds families it has never seen: a race against the clock.

    python benchmarks/speedrun/speedrun.py DATA --out OUT              # 0.5, then 0.7
    ... --ranks 4 --recipe mine.yaml                                   # more cards, another recipe
    ... --seed 2 --compiled /tmp/compiled                              # another seed, kernels kept
    ... --chains 40 --held-out 16 --target 0.01 --seconds 600          # proof on a laptop

DATA gets two simulated datasets, made once from fixed seeds: `train` (families to learn from) and
`held_out` (other families; folds are drawn at random, so none is shared). The clock starts with
the command `evofeed train` and counts everything: imports, compilation (Triton's cache is empty
unless `--compiled` names that of another seed's run), the first read, every validation. It stops
when lDDT-Ca over all held-out chains reaches the last target, or at `--seconds`. OUT gets
`record.json` (times, curve, configuration, card, versions, commit) and `curve.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
_TRAIN_SEED, _HELD_OUT_SEED = 1, 12345
_POLL = 0.2  # seconds between two looks at the log


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the record")
    parser.add_argument("--recipe", type=Path, default=HERE / "recipe.yaml")
    parser.add_argument("--ranks", type=int, default=1, help="cards")
    parser.add_argument("--seed", type=int, help="default: the recipe's")
    parser.add_argument("--compiled", type=Path, help="Triton's cache, kept for the next seed")
    parser.add_argument("--target", type=float, action="append", help="default: 0.5 and 0.7")
    parser.add_argument("--seconds", type=float, default=600, help="give up after so long")
    parser.add_argument("--chains", type=int, default=6000, help="to train on")
    parser.add_argument("--held-out", type=int, default=80, help="chains to measure on")
    parser.add_argument("--device", default="")
    return parser.parse_args()


def prepare(data: Path, chains: int, held_out: int) -> None:
    """Simulate and featurize both datasets, unless they are there."""
    for name, count, seed in (
        ("train", chains, _TRAIN_SEED),
        ("held_out", held_out, _HELD_OUT_SEED),
    ):
        if (data / name).exists():
            continue
        with tempfile.TemporaryDirectory() as raw:
            folder = f"{raw}/{name}"
            evofeed("synth", folder, "--chains", str(count), "--seed", str(seed), *_FAMILIES)
            evofeed("featurize", folder, str(data / name), "--executor", "local")


_FAMILIES = ("--mean-length", "72", "--mean-depth", "250", "--mean-members", "1")


def evofeed(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "evofeed.cli", *words], check=True)


def race(options: argparse.Namespace, targets: list[float], run: Path) -> dict[str, Any]:
    """Train until the last target is reached; the curve with seconds since the start."""
    launch = ["-m", "evofeed.cli"]
    if options.ranks > 1:
        launch = ["-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}", *launch]
    recipe = run.parent / options.recipe.name
    settings = yaml.safe_load(options.recipe.read_text())
    seed = settings["seed"] if options.seed is None else options.seed
    recipe.write_text(yaml.safe_dump(settings | {"seed": seed}))
    command = [sys.executable, *launch, "train", str(recipe)]
    command += ["--dataset", str(options.data / "train")]
    command += ["--validation", str(options.data / "held_out"), "--out", str(run)]
    if options.device:
        command += ["--device", options.device]
    compiled = options.compiled or run.parent / "compiled"
    compiled_before = compiled.exists()
    environment = os.environ | {"TRITON_CACHE_DIR": str(compiled)}
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=sys.stderr, env=environment)
    curve: list[dict[str, float]] = []
    reached: dict[str, float | None] = {str(target): None for target in targets}
    for line in follow(run / "steps.jsonl", process, start + options.seconds):
        if "metrics" not in line:
            continue
        seconds = round(time.monotonic() - start, 1)
        curve.append({"step": line["step"] + 1, "seconds": seconds, **line["metrics"]})
        score = line["metrics"]["lddt_ca"]
        print(f"{seconds:7.1f} s  step {line['step'] + 1:6}  lDDT-Ca {score:.3f}", flush=True)
        for target in targets:
            if score >= target and reached[str(target)] is None:
                reached[str(target)] = seconds
        if score >= targets[-1]:
            break
    stopped_by = "target" if all(reached.values()) else "clock"
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)  # torchrun reports a signal as its own failure
        process.wait()
    elif process.returncode:
        raise SystemExit(f"the training ended with {process.returncode}; see what it printed")
    command = [word.replace(str(run), "OUT").replace(str(recipe), str(options.recipe))
               for word in command[1:]]  # fmt: skip
    return {
        "seed": seed,
        "compiled_before": compiled_before,
        "seconds_to": reached,
        "stopped_by": stopped_by,
        "command": "python " + " ".join(command),
        "curve": curve,
    }


def where_time_went(run: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Seconds before the first step, of the first ones, and of a usual one by part."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    times = [line["seconds"] for line in lines if "seconds" in line]
    usual = [t for t in times[20:] or times if not t.get("validation")]
    parts = {name: statistics.fmean(t.get(name, 0.0) for t in usual) for name in usual[0]}
    return {
        "before_first_step": round(facts["seconds_before_first_wait"], 1),
        "first_steps": [round(sum(t.values()), 2) for t in times[:4]],
        "first_validation": round(
            next((t["validation"] for t in times if t.get("validation")), 0.0), 1
        ),
        "usual_step_ms": round(1e3 * statistics.median(sum(t.values()) for t in usual), 2),
        "usual_parts_ms": {name: round(1e3 * mean, 2) for name, mean in parts.items()},
    }


def follow(log: Path, process: subprocess.Popen[bytes], until: float) -> Iterator[dict[str, Any]]:
    """Lines of a growing JSON-lines file, till the process ends or the time is over."""
    done = 0
    while time.monotonic() < until:
        ended = process.poll() is not None
        if log.is_file():
            with log.open() as lines:
                lines.seek(done)
                while (line := lines.readline()).endswith("\n"):
                    done = lines.tell()
                    yield json.loads(line)
        if ended:
            return
        time.sleep(_POLL)


def commit() -> str:
    """The checkout's commit, or nothing outside one."""
    words = ["git", "-C", str(HERE), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def draw(record: dict[str, Any], path: Path) -> None:
    """lDDT-Ca over the seconds, with the targets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([x["seconds"] for x in record["curve"]], [x["lddt_ca"] for x in record["curve"]])
    for target in record["seconds_to"]:
        axes.axhline(float(target), color="0.6", linestyle=":")
    axes.set(
        xlabel="seconds since `evofeed train`", ylabel="lDDT-Ca on unseen families", ylim=(0, 1)
    )
    figure.savefig(path, dpi=150)


def main() -> None:
    options = arguments()
    targets = sorted(options.target or [0.5, 0.7])
    prepare(options.data, options.chains, options.held_out)
    with tempfile.TemporaryDirectory(prefix="speedrun-") as folder:
        run = Path(folder) / "run"
        record = race(options, targets, run)
        facts = json.loads((run / "run.json").read_text())
        record["seconds_by_part"] = where_time_went(run, facts)
    record |= {
        "cards": f"{facts['world_size']} x {facts['device']}",
        "commit": commit(),
        "recipe": str(options.recipe.name),
        **{name: facts[name] for name in ("date", "parameters", "dataset", "versions", "config")},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    draw(record, options.out / "curve.png")
    print(json.dumps(record["seconds_to"]))


if __name__ == "__main__":
    main()

"""Complexes on a GPU: learning interfaces, and what labels of the wrong copies cost.

    PYTHONPATH=src python benchmarks/complexes_gpu.py DATA --out OUT --seconds 165

DATA holds `train` and `held_out`, simulated complexes of different families (see `--make`), and
`large`, those whose crop is full. Parts, each written to OUT/complexes.json when it is done:

`learning`: `evofeed train` with the recipe twice from the same weights, side by side on one card
(or each on its own): labels of the copies that fit, and labels as listed in the file (OpenFold's
fault, `chains_as_listed`). Both are measured on complexes of families that they have not seen,
with the copies that fit, stop when `--seconds` are over, and are compared at their last common
step.
`finished`: the same of runs that are in OUT/runs already.
`predict`: `evofeed predict` of one unseen complex by the first run.
`step`: `evofeed train multimer` on `large` (without recycling), and `evofeed predict` of one of it.

What the loader does at the preset's sizes is in `complexes_loader.py`.
Proof on a laptop: --recipe tiny_multimer --device cpu --steps 4 --make 4.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
RUNS = {"assigned": False, "listed": True}
SETS = {
    "train": ("1200", "1", "32", "250"),
    "held_out": ("64", "12345", "32", "250"),
    "large": ("6", "7", "170", "1500"),
}
"""Complexes, seed, mean length and depth of each simulated dataset."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default=str(ROOT / "benchmarks/complexes_recipe.yaml"))
    parser.add_argument("--seconds", type=float, default=165, help="for everything")
    parser.add_argument("--step-seconds", type=float, default=90, help="wanted for the last part")
    parser.add_argument("--predict-seconds", type=float, default=15, help="kept for that part")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, help="of each run, at most")
    parser.add_argument("--picture", type=Path, help="of the curves")
    parser.add_argument("--parts", nargs="+", default=["learning", "predict", "step"])
    parser.add_argument("--make", type=int, help="simulate this many complexes a set; 0: all")
    return parser.parse_args()


def evofeed(*words: str) -> list[str]:
    return [sys.executable, "-m", "evofeed.cli", *words]


def make(data: Path, most: int) -> None:
    """Simulate and featurize the datasets that are not there."""
    for name, (count, seed, length, depth) in SETS.items():
        if (data / name).exists():
            continue
        with tempfile.TemporaryDirectory() as folder:
            raw, out = f"{folder}/{name}", str(data / name)
            sizes = ("--mean-length", length, "--mean-depth", depth, "--mean-members", "1")
            kinds = ("--stoichiometry", "A2B2") if name == "large" else ()
            number = str(min(most or int(count), int(count)))
            for words in (
                ("synth", raw, "--complexes", number, "--seed", seed, *sizes, *kinds),
                ("featurize", raw, out, "--executor", "local"),
                ("assemblies", raw, out),
            ):
                subprocess.run(evofeed(*words), check=True)


def learning(options: argparse.Namespace, until: float) -> dict[str, Any]:
    """Both runs at once; curves by step, and the last common measurement."""
    runs = options.out / "runs"
    started: dict[str, subprocess.Popen[bytes]] = {}
    began = time.monotonic()
    cards = torch.cuda.device_count() if options.device == "cuda" else 0
    for number, (name, listed) in enumerate(RUNS.items()):
        path = Path(options.recipe)
        recipe = yaml.safe_load(path.read_text()) if path.is_file() else {"preset": options.recipe}
        recipe["loss"] = {**recipe.get("loss", {}), "chains_as_listed": listed}
        if options.steps:
            recipe |= {"steps": options.steps, "validate_every": max(1, options.steps // 2)}
        runs.mkdir(parents=True, exist_ok=True)
        (runs / f"{name}.yaml").write_text(yaml.safe_dump(recipe))
        words = evofeed("train", str(runs / f"{name}.yaml"), "--device", options.device, "--json")
        words += ["--dataset", str(options.data / "train")]
        words += ["--validation", str(options.data / "held_out"), "--out", str(runs / name)]
        where = {"CUDA_VISIBLE_DEVICES": str(number % cards)} if cards > 1 else {}
        started[name] = subprocess.Popen(
            words, env=os.environ | where, stdout=(runs / f"{name}.log").open("wb"),
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    while time.monotonic() < until and any(p.poll() is None for p in started.values()):
        time.sleep(0.2)
    for process in started.values():
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    codes = {name: process.wait(timeout=60) for name, process in started.items()}
    found = learned(runs)
    logs = {n: (runs / f"{n}.log").read_text()[-1500:] for n, c in found["curves"].items() if not c}
    return {
        "seconds": round(time.monotonic() - began, 1), "cards": cards, "exit_codes": codes,
        "recipe": yaml.safe_load((runs / "assigned.yaml").read_text()), **found, "logs": logs,
    }  # fmt: skip


def learned(runs: Path) -> dict[str, Any]:
    """Curves of both runs, and their last common measurement."""
    curves = {name: curve(runs / name) for name in RUNS}
    common = sorted(set.intersection(*({row["step"] for row in c} for c in curves.values())))
    last = common[-1] if common else None
    at_last = {
        name: next((row for row in c if row["step"] == last), None) for name, c in curves.items()
    }
    return {"curves": curves, "last_common_step": last, "at_last_common_step": at_last}


def finished(options: argparse.Namespace, _: float) -> dict[str, Any]:
    """`learning` of runs that are in OUT/runs already."""
    runs = options.out / "runs"
    facts = json.loads((runs / "assigned" / "run.json").read_text())
    return {
        "device": facts["device"], "date": facts["date"][:10], "versions": facts["versions"],
        "parameters": facts["parameters"],
        "recipe": yaml.safe_load((runs / "assigned.yaml").read_text()), **learned(runs),
    }  # fmt: skip


def picture(found: dict[str, Any], path: Path) -> None:
    """Interface lDDT, DockQ and lDDT of unseen families over the steps of both runs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = {"interface_lddt": "interface lDDT", "dockq": "DockQ", "lddt_ca": "lDDT-Ca"}
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), constrained_layout=True)
    for ax, (name, title) in zip(axes, names.items(), strict=True):
        for run, label in (("assigned", "copies that fit"), ("listed", "copies as listed")):
            rows = found["curves"][run]
            ax.plot([r["step"] for r in rows], [r[name] for r in rows], marker=".", label=label)
        ax.set(title=title, xlabel="step", ylim=(0, None))
        ax.grid(alpha=0.3)
    axes[0].legend(title="labels")
    figure.suptitle("Simulated complexes of unseen families")
    figure.savefig(path, dpi=110)


def curve(run: Path) -> list[dict[str, float]]:
    """Measurements of a run, by step."""
    from evofeed.trainer.log.runlog import read_steps

    if not (run / "steps.jsonl").is_file():
        return []
    return [
        {"step": line["step"] + 1, **{k: round(v, 4) for k, v in line["metrics"].items()}}
        for line in read_steps(run)
        if "metrics" in line
    ]


def predict(options: argparse.Namespace, until: float) -> dict[str, Any]:
    """One unseen complex by the first run."""
    return predicted(options, "held_out", "assigned", until)


def predicted(options: argparse.Namespace, dataset: str, run: str, until: float) -> dict[str, Any]:
    """The complex of most chains, by the command."""
    from evofeed.store import Dataset

    table = Dataset.open(str(options.data / dataset)).assemblies.table.to_pydict()
    _, name = max(zip(table["num_chains"], table["assembly_id"], strict=True))
    file = options.out / f"{name}.cif"
    words = evofeed("predict", str(options.data / dataset), name, "--recycles", "0", "--json")
    words += ["--checkpoint", str(options.out / "runs" / run), "--out", str(file)]
    words += ["--device", options.device]
    began = time.monotonic()
    seconds = max(until - began, 5)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not within {seconds:.0f} s"}
    if done.returncode:
        return {"error": done.stderr[-800:]}
    chains = {row.split()[6] for row in file.read_text().splitlines() if row.startswith("ATOM")}
    facts = json.loads(done.stdout)
    facts.pop("out", None)
    return {**facts, "chains": sorted(chains), "seconds": round(time.monotonic() - began, 1)}


def step(options: argparse.Namespace, until: float) -> dict[str, Any]:
    """The preset's own step behind the loader, and its prediction of a complex of a full crop."""
    from evofeed.trainer.log.runlog import read_steps

    run = options.out / "runs" / "multimer"
    config = {"preset": "multimer", "steps": options.steps or 8, "profile_steps": 0}
    config |= {"loader": {"max_recycling_iters": 0}, "optim": {"warmup_steps": 1000}}
    if options.device == "cpu":
        config |= {"preset": "tiny_multimer"}
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    file = options.out / "runs" / "multimer.yaml"
    file.write_text(yaml.safe_dump(config))
    words = evofeed("train", str(file), "--dataset", str(options.data / "large"), "--json")
    words += ["--out", str(run), "--device", options.device]
    began = time.monotonic()
    with (options.out / "runs" / "multimer.log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT)
    while process.poll() is None and time.monotonic() < until - 8:
        time.sleep(0.2)
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=60)
    taken = [line["seconds"] for line in read_steps(run)]
    later = sorted(sum(one.values()) for one in taken[2:])
    if not later:
        log_end = (options.out / "runs" / "multimer.log").read_text(errors="replace")[:1500]
        return {"error": f"{len(taken)} steps before the time was over", "log": log_end}
    found: dict[str, Any] = {
        "exit_code": code,
        "seconds": round(time.monotonic() - began, 1),
        "first_steps_seconds": [round(sum(one.values()), 2) for one in taken[:2]],
        "steps": len(later),
        "step_ms": {
            "median": round(1e3 * later[len(later) // 2], 1),
            "min": round(1e3 * later[0], 1),
            "max": round(1e3 * later[-1], 1),
        },
        "data_wait_ms": [round(1e3 * one["data_wait"], 3) for one in taken],
    }
    (options.out / "step.json").write_text(json.dumps(found, indent=1) + "\n")
    if time.monotonic() < until - 5:
        found["predict"] = predicted(options, "large", "multimer", until)
    return found


def main() -> None:
    options = arguments()
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.make is not None:
        make(options.data, options.make)
        began = time.monotonic()
    result: dict[str, Any] = {
        "benchmark": "complexes_gpu",
        "command": "python benchmarks/complexes_gpu.py DATA " + " ".join(sys.argv[2:]),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    end = began + options.seconds
    kept = options.predict_seconds if "predict" in options.parts else 0
    found: dict[str, Callable[..., dict[str, Any]]] = {
        "learning": learning, "finished": finished, "predict": predict, "step": step,
    }  # fmt: skip
    if "step" in options.parts and "learning" in options.parts:
        kept += options.step_seconds
    ends = {"learning": end - kept}
    parts = [(found[name], ends.get(name, end)) for name in options.parts]
    for part, until in parts:
        try:
            result[part.__name__] = part(options, until)
        except Exception:  # the others shall be measured
            result[part.__name__] = {"error": traceback.format_exc()[-1500:]}
        if options.picture and result[part.__name__].get("curves"):
            picture(result[part.__name__], options.picture)
        result[part.__name__]["ended_at"] = round(time.monotonic() - began, 1)
        print(json.dumps({part.__name__: result[part.__name__]}), flush=True)
        (options.out / "complexes.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

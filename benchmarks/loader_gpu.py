"""The loader on a GPU: how fast. Makes its own data; one JSON file of figures.

PYTHONPATH=src python benchmarks/loader_gpu.py --out benchmarks/results/loader_h200.json
PYTHONPATH=src python benchmarks/loader_gpu.py --device cpu --small --out /tmp/loader.json
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# The reader process unpickles SlowStorage from this folder.
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402
from loader_sample import (  # noqa: E402
    cold_start,
    copy_bandwidth,
    featurize_times,
    host_cost,
    queued_work,
)
from loader_waits import Consumer, baseline, feed  # noqa: E402
from made_up_chains import SlowStorage, write_chains  # noqa: E402
from openfold_peer import StoredChains  # noqa: E402
from recording import about, save  # noqa: E402

from evofeed.loader import LoaderConfig  # noqa: E402
from evofeed.store import Dataset  # noqa: E402


def presets(small: bool) -> dict[str, LoaderConfig]:
    more: dict[str, Any] = {"weighted": False}
    if small:
        more |= {"crop_size": 48, "max_msa_clusters": 16, "max_extra_msa": 64}
    return {
        "initial_training": LoaderConfig.initial_training(**more),
        "finetuning": LoaderConfig.finetuning(**more),
    }


def run_stages(
    args: argparse.Namespace,
    dataset: Dataset,
    folder: str,
    result: dict[str, Any],
    done: Callable[[str], None],
) -> None:
    """The asked-for parts, in order; the figures so far are saved after each."""
    stages, device, small = set(args.stages.split()), args.device, args.small
    if "copy" in stages and device == "cuda":
        result["copy"] = {f"{mb}_mb": copy_bandwidth(mb << 20) for mb in (1, 4, 16)}
        done(f"copies: {result['copy']['4_mb']}")
    slow = Dataset(SlowStorage(folder, 0.05), dataset.digest, dataset.manifest, dataset.index)
    for name, config in presets(small).items():
        if args.preset not in (None, name):
            continue
        here = result["presets"][name] = {}
        if "host" in stages:
            here["host"] = {
                kind: host_cost(dataset, config, device, fused=fused)
                for kind, fused in (("kernels", True), ("plain_torch", False))
            }
            done(f"{name} host: {here['host']}")
        if "featurize" in stages:
            for kind, fused in (("featurize", True), ("featurize_in_plain_torch", False)):
                count = 8 if small else 24
                here[kind] = featurize_times(dataset, config, device, count, fused=fused)
                if device == "cuda":
                    here[kind]["queued"] = queued_work(dataset, config, fused=fused)
                done(f"{name} {kind}: {here[kind]}")
        if "cold" in stages:
            here["cold_start_seconds"] = cold_start(folder, config, device, 2 if small else 5)
            done(f"{name}: cold start {here['cold_start_seconds']}")
        for seconds, steps in _lengths(args, stages):
            gc.collect()
            consumer = Consumer(device, seconds, sleeps=args.sleep)
            key = f"step_{int(seconds * 1e3)}_ms"
            if "feed" in stages:
                here[key] = feed(slow, config, consumer, steps)
                done(f"{name} at {seconds} s: {here[key]}")
            if "plain" in stages:
                here[f"{key}_in_plain_torch"] = feed(slow, config, consumer, steps, fused=False)
                done(f"{name} in plain torch: {here[f'{key}_in_plain_torch']}")
            if args.openfold is not None and "peer" in stages:
                steps = min(steps, args.peer_steps)
                chains = StoredChains(slow, args.openfold, name, steps + args.workers)
                here[f"{key}_openfold_dataloader"] = baseline(chains, consumer, steps, args.workers)
                done(f"{name}, torch DataLoader: {here[f'{key}_openfold_dataloader']}")


def _lengths(args: argparse.Namespace, stages: set[str]) -> list[tuple[float, int]]:
    """Seconds and number of the steps to feed."""
    if not stages & {"feed", "plain", "peer"}:
        return []
    lengths = [(0.05, args.steps), (0.25, args.slow_steps)]
    return [(seconds, steps) for seconds, steps in lengths if steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes, to prove the script")
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500, help="steps at 50 ms")
    parser.add_argument("--slow-steps", type=int, default=200, help="steps at 250 ms")
    parser.add_argument("--stages", default="copy host featurize cold feed plain peer")
    parser.add_argument("--data", help="keep the chains here, for several runs")
    parser.add_argument("--preset", choices=["initial_training", "finetuning"])
    parser.add_argument("--sleep", action="store_true", help="the step sleeps, see Consumer")
    parser.add_argument("--openfold", type=Path, help="a checkout of OpenFold, for the peer")
    parser.add_argument("--peer-steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=14, help="of the DataLoader beside ours")
    args = parser.parse_args()
    device = args.device
    if args.small:
        args.chains, args.steps, args.slow_steps = 12, min(12, args.steps), min(4, args.slow_steps)
        args.workers, args.peer_steps = 2, 6
    result: dict[str, Any] = {**about("torch", "numpy", device=device), "presets": {}}

    def done(note: str) -> None:
        save(args.out, result)
        print(f"[{time.perf_counter() - begun:6.1f} s] {note}", flush=True)

    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data or str(Path(temporary) / "d")
        if Path(folder).exists():
            dataset = Dataset.open(folder)
        else:
            dataset = write_chains(Path(folder), args.chains, scale=0.15 if args.small else 1.0)
        result["data"] = {
            "chains": len(dataset),
            "mean_rows": float(np.mean(dataset.index["num_alignments"].to_numpy())),
            "mean_residues": float(np.mean(dataset.index["num_res"].to_numpy())),
            "mean_mb": float(np.mean(dataset.index["nbytes"].to_numpy()) / 1e6),
        }
        done(f"made {len(dataset)} chains")
        run_stages(args, dataset, folder, result, done)
    done("done")


if __name__ == "__main__":
    main()

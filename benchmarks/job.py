"""What the job costs beside the bare work: chains a second by executor, resume, poison.

    python benchmarks/job.py [--chains 512] [--repeats 3] [--out benchmarks/results/job.json]

The bare work is `run_unit` on every unit of the same plan, one after another in one
warm process. Executors take turns within each repeat, each into an empty dataset.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from store_workload import workload_chain

from evofeed.featurize import FeaturizeConfig, discover
from evofeed.featurize.job import run_job
from evofeed.featurize.job.units import make_plan
from evofeed.featurize.job.work import UnitTask, run_unit
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.join import join_chains
from evofeed.synth import write_synthetic


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/job.json"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-bench-"))
    try:
        results = measure(folder, args.chains, args.repeats)
        results["join"] = join(folder / "join", args.repeats)
    finally:
        shutil.rmtree(folder)
    results |= circumstances(args.chains, args.repeats)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps({"seconds": results["seconds"], "join": results["join"]}, indent=1))


def measure(folder: Path, chains: int, repeats: int) -> dict[str, Any]:
    raw = folder / "raw"
    began = time.perf_counter()
    synth = write_synthetic(raw, chains, seed=0)
    seconds: dict[str, list[float]] = {"write_synthetic": [time.perf_counter() - began]}
    ways: dict[str, Callable[[Path], str | None]] = {
        "bare": lambda data: bare(raw, data),
        "local, 1 worker": lambda data: job(raw, data, executor="local", workers=1),
        "local, 2 workers": lambda data: job(raw, data, executor="local", workers=2),
        "ray, 2 workers": lambda data: job(raw, data, executor="ray", workers=2),
    }
    digests = set()
    bare(raw, folder / "warm")
    for _ in range(repeats):
        for name, way in ways.items():
            data = folder / "data"
            began = time.perf_counter()
            digests.add(way(data))
            seconds.setdefault(name, []).append(round(time.perf_counter() - began, 3))
            if name == "local, 2 workers":
                began = time.perf_counter()
                way(data)
                took = round(time.perf_counter() - began, 3)
                seconds.setdefault("run again when done", []).append(took)
            shutil.rmtree(data)
    assert len(digests - {None}) == 1, "executors disagree"
    return {"input_bytes": synth.num_bytes, "seconds": summary(seconds, chains)}


def bare(raw: Path, data: Path) -> None:
    config = FeaturizeConfig()
    plan = make_plan(discover(str(raw)), config, None)
    for unit in plan.units:
        sources = tuple(plan.sources[chain_id] for chain_id in unit.chain_ids)
        task = UnitTask(
            unit_id=unit.unit_id,
            dataset_uri=str(data),
            sources=sources,
            config=config,
            crop=None,
            memory=8 << 30,
        )
        run_unit(task, lambda chain_id: None)


def job(raw: Path, data: Path, **options: Any) -> str | None:
    return run_job(str(raw), str(data), **options).snapshot


def join(folder: Path, repeats: int) -> dict[str, Any]:
    """Joining small shards of PDB-sized chains into one, as the end of a job does."""
    writer = DatasetWriter(str(folder), shard_nbytes=4 << 20)
    for number in range(100):
        writer.add(workload_chain(number))
    writer.commit()
    dataset = Dataset.open(folder)
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        entry = join_chains(dataset.storage, dataset.index)
        spent.append(time.process_time() - began)
    return {
        "shards": len(dataset.manifest.shards),
        "chains": len(dataset),
        "nbytes": entry.nbytes,
        "cpu_seconds": {"median": statistics.median(spent), "best": min(spent)},
        "mb_per_cpu_second_best": round(entry.nbytes / 1e6 / min(spent), 1),
    }


def summary(seconds: dict[str, list[float]], chains: int) -> dict[str, Any]:
    return {
        name: {
            "median": round(statistics.median(values), 3),
            "spread": round(max(values) - min(values), 3),
            "best": round(min(values), 3),
            "chains_per_second_best": round(chains / min(values), 1),
        }
        for name, values in seconds.items()
    }


def circumstances(chains: int, repeats: int) -> dict[str, Any]:
    return {
        "command": " ".join(["python", *sys.argv]),
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "load": list(os.getloadavg()),
        "chains": chains,
        "repeats": repeats,
        "versions": {name: version(name) for name in ("numpy", "pyarrow", "numba", "ray")}
        | {"python": platform.python_version()},
        "date": datetime.date.today().isoformat(),
    }


if __name__ == "__main__":
    main()

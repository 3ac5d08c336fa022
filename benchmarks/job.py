"""What the job costs beside the bare work: chains a second by executor and by size of the input.

    python benchmarks/job.py [--chains 500 2000] [--repeats 1] [--out benchmarks/results/job.json]

The bare work is `featurize_chain` on every chain of the same plan, then the same with encoding
and one commit, one chain after another in one warm process. All ways take turns, each in a fork
of that process and into an empty dataset; its CPU seconds are of all that it started. Two sizes
tell what a way costs to start from what it costs a chain.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

from recording import about, save
from store_workload import workload_chain

from evofeed.featurize import FeaturizeConfig, discover, featurize_chain
from evofeed.featurize.job import run_job
from evofeed.store import Dataset, DatasetWriter
from evofeed.store.join import join_chains
from evofeed.synth import write_synthetic

Way = Callable[[Path, Path], str | None]
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chains", type=int, nargs=2, default=[500, 2000])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/job.json"))
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="evofeed-bench-"))
    try:
        runs = measure(folder, sorted(args.chains), args.repeats)
        joined = join(folder / "join", 3)
    finally:
        shutil.rmtree(folder)
    results: dict[str, Any] = {"ways": summary(runs), "join": joined, "runs": runs}
    results |= about("numpy", "pyarrow", "numba", "ray") | {"repeats": args.repeats}
    save(args.out, results)
    print(table(results["ways"]))


def measure(folder: Path, sizes: list[int], repeats: int) -> list[dict[str, Any]]:
    for chains in sizes:
        write_synthetic(folder / f"raw{chains}", chains, seed=0)
    ways: dict[str, Way] = {
        "featurize_chain": features_only,
        "featurize_chain, encode, commit": committed,
        "local, 1 worker": partial(job, executor="local", workers=1),
        "local, 2 workers": partial(job, executor="local", workers=2),
        "ray, 1 worker": partial(job, executor="ray", workers=1),
        "ray, 2 workers": partial(job, executor="ray", workers=2),
    }
    features_only(folder / f"raw{sizes[0]}", folder)  # warm: kernels compiled, modules loaded
    ways["ray, 2 workers"](folder / f"raw{sizes[0]}", folder / "data")  # and Ray in the page cache
    shutil.rmtree(folder / "data")
    runs = []
    for repeat in range(repeats):
        for chains in sizes:
            digests = set()
            for name, way in ways.items():
                load = os.getloadavg()[0]
                run = in_a_fork(way, folder / f"raw{chains}", folder / "data")
                digests.add(run.pop("digest"))
                runs.append({"way": name, "chains": chains, "repeat": repeat, **run})
                runs[-1]["load"] = [round(load, 1), round(os.getloadavg()[0], 1)]
                shutil.rmtree(folder / "data", ignore_errors=True)
            assert len(digests - {None}) == 1, "executors disagree"
    return runs


def in_a_fork(way: Way, raw: Path, data: Path) -> dict[str, Any]:
    """Seconds by the wall, and of the CPU with all that was started on the way, orphans too."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        before = time.process_time()
        began = time.perf_counter()
        digest = way(raw, data)
        seconds = time.perf_counter() - began
        cpu = time.process_time() - before
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu += used.ru_utime + used.ru_stime
        run = {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2), "digest": digest}
        os.write(write, json.dumps(run).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    run = json.loads(said)
    return dict(run)


def features_only(raw: Path, data: Path) -> None:
    for source in discover(str(raw)):
        featurize_chain(source, FeaturizeConfig())


def committed(raw: Path, data: Path) -> None:
    writer = DatasetWriter(str(data))
    for source in discover(str(raw)):
        writer.add(featurize_chain(source, FeaturizeConfig()))
    writer.commit()


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


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by way: both sizes, and a straight line between them."""
    small, large = sorted({run["chains"] for run in runs})
    found: dict[str, Any] = {}
    for way in dict.fromkeys(run["way"] for run in runs):
        found[way] = {"chains_per_second": {}}
        lines = {}
        for what in ("seconds", "cpu_seconds"):
            low, high = (
                statistics.median(r[what] for r in runs if (r["way"], r["chains"]) == (way, size))
                for size in (small, large)
            )
            found[way][what] = {str(small): low, str(large): high}
            lines[what] = (high - low) / (large - small)
        for size in (small, large):
            rate = size / found[way]["seconds"][str(size)]
            found[way]["chains_per_second"][str(size)] = round(rate, 1)
        start = found[way]["seconds"][str(small)] - small * lines["seconds"]
        found[way] |= {
            "ms_a_further_chain": round(1000 * lines["seconds"], 2),
            "cpu_ms_a_further_chain": round(1000 * lines["cpu_seconds"], 2),
            "seconds_before_the_first": round(start, 2),
        }
    return found


def table(ways: dict[str, Any]) -> str:
    sizes = list(next(iter(ways.values()))["seconds"])
    head = [
        *(f"{size} chains/s" for size in sizes),
        "CPU s",
        "ms a further chain",
        "CPU ms",
        "s fixed",
    ]
    lines = ["| | " + " | ".join(head) + " |", "|---" * 7 + "|"]
    for way, figures in ways.items():
        cells = [*figures["chains_per_second"].values(), figures["cpu_seconds"][sizes[-1]]]
        cells += [figures["ms_a_further_chain"], figures["cpu_ms_a_further_chain"]]
        cells += [figures["seconds_before_the_first"]]
        lines.append(f"| {way} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Ranks of one host side by side: does any wait for another's data?

    PYTHONPATH=src python benchmarks/loader_ranks.py --ranks 4 --out ranks.json
    PYTHONPATH=src python benchmarks/loader_ranks.py --ranks 2 --device cpu --small --out r.json

Every rank loads, runs a step of matrix products, and meets the others in an all-reduce: through
NCCL if each has a GPU of its own, else through gloo. The share of that meeting that data causes
is, step by step, the longest wait of any rank less one's own.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from loader_gpu import presets  # noqa: E402
from loader_waits import Consumer, cpu_seconds  # noqa: E402
from made_up_chains import SlowStorage, write_chains  # noqa: E402

from evofeed.loader import FeatureLoader  # noqa: E402
from evofeed.store import Dataset  # noqa: E402


def rank_main(rank: int, args: argparse.Namespace, folder: str, meeting: str) -> None:
    store = dist.FileStore(meeting, args.ranks)
    if args.stuck_after:  # a rank that waits forever says where
        faulthandler.dump_traceback_later(args.stuck_after)
    torch.set_num_threads(1)
    device = args.device
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend(args), store=store, rank=rank, world_size=args.ranks)
    dataset = Dataset.open(folder)
    slow = Dataset(SlowStorage(folder, 0.05), dataset.digest, dataset.manifest, dataset.index)
    result: dict[str, Any] = {}
    for step_ms, steps in zip(args.step_ms, args.steps, strict=True):
        mine = train(slow, args, rank, device, step_ms / 1e3, steps)
        everyone: list[Any] = [None] * args.ranks
        dist.all_gather_object(everyone, mine)
        if rank == 0:
            result[f"step_{step_ms:.0f}_ms"] = figures(everyone, steps)
            save(args, result)
    dist.destroy_process_group()


def backend(args: argparse.Namespace) -> str:
    own = args.device == "cuda" and torch.cuda.device_count() >= args.ranks
    return "cpu:gloo,cuda:nccl" if own else "gloo"


def meeting_of(args: argparse.Namespace, consumer: Consumer) -> Callable[[], None]:
    """What the ranks do together at the end of a step, and wait for without spinning."""
    on_gpu = "nccl" in backend(args)
    token = torch.zeros(1, device="cuda" if on_gpu else "cpu")

    def meet() -> None:
        dist.all_reduce(token)
        if on_gpu:
            consumer.wait()

    return meet


def train(
    dataset: Dataset, args: argparse.Namespace, rank: int, device: str, seconds: float, steps: int
) -> dict[str, Any]:
    """The same loop with the loader, and with one batch again and again: what each waited for."""
    config = presets(args.small)["initial_training"].replace(
        epoch_len=steps * args.ranks, global_batch_size=args.ranks
    )
    consumer = Consumer(device, seconds, sleeps=args.sleep)
    meet = meeting_of(args, consumer)
    with FeatureLoader(dataset, config, rank=rank, world_size=args.ranks, device=device) as loader:
        stream = iter(loader)
        batch = next(stream)
        consumer.step(batch)
        cpu = cpu_seconds(loader)
        fed = loop(lambda: next(stream), consumer, meet, steps - 1)
        fed["cores"] = (cpu_seconds(loader) - cpu) / fed["wall"]
        fed["causes"] = loader.stats()["wait_seconds_by_cause"]
        fed["make_host_ms"] = loader.stats()["make_host"]
        fed["make_device_ms"] = loader.stats()["make_device"]
    return {"fed": fed, "alone": loop(lambda: batch, consumer, meet, max(steps // 4, 10))}


def loop(
    take: Callable[[], Any], consumer: Consumer, meet: Callable[[], None], steps: int
) -> dict[str, Any]:
    waits, barriers, walls = [], [], []
    meet()
    begun = time.perf_counter()
    for _ in range(steps):
        called = time.perf_counter()
        batch = take()
        taken = time.perf_counter()
        consumer.step(batch)
        met = time.perf_counter()
        meet()
        walls.append(met - taken)
        waits.append(taken - called)
        barriers.append(time.perf_counter() - met)
    wall = time.perf_counter() - begun
    return {"waits": waits, "barriers": barriers, "steps": walls, "wall": wall}


def figures(everyone: list[dict[str, Any]], steps: int) -> dict[str, Any]:
    waits = np.array([one["fed"]["waits"] for one in everyone])
    wall = max(one["fed"]["wall"] for one in everyone)
    caused = waits.max(0) - waits  # how much longer the slowest rank waited for its data
    at_barrier = {
        kind: max(sum(one[kind]["barriers"]) / one[kind]["wall"] for one in everyone)
        for kind in ("fed", "alone")
    }
    return {
        "steps": steps,
        "data_wait_p50_ms": float(np.percentile(waits, 50) * 1e3),
        "data_wait_p99_ms": float(np.percentile(waits, 99) * 1e3),
        "data_wait_max_ms": float(waits.max() * 1e3),
        "barrier_share_caused_by_data": float(caused.sum(1).max() / wall),
        "barrier_share_in_all": at_barrier["fed"],
        "barrier_share_with_one_batch_again_and_again": at_barrier["alone"],
        "step_ms_median": [float(np.median(one["fed"]["steps"]) * 1e3) for one in everyone],
        "step_ms_median_with_one_batch": [
            float(np.median(one["alone"]["steps"]) * 1e3) for one in everyone
        ],
        "wait_seconds_by_cause": [one["fed"]["causes"] for one in everyone],
        "make_host_ms": [one["fed"]["make_host_ms"]["p50_ms"] for one in everyone],
        "make_device_ms": [one["fed"]["make_device_ms"]["p50_ms"] for one in everyone],
        "cores_a_rank": float(np.mean([one["fed"]["cores"] for one in everyone])),
    }


def save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    steps, lengths = " ".join(map(str, args.steps)), " ".join(f"{ms:.0f}" for ms in args.step_ms)
    whole = {
        "command": f"python benchmarks/loader_ranks.py --ranks {args.ranks} --steps {steps} "
        f"--step-ms {lengths}" + " --sleep" * args.sleep,
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": args.ranks,
        "gpus": torch.cuda.device_count(),
        "backend": backend(args),
        "consumer": "sleeps" if args.sleep or args.device == "cpu" else "matrix products",
        "slow_reads": "1 in 20 waits 50 ms",
        **result,
    }
    Path(args.out).write_text(json.dumps(whole, indent=1))
    print(json.dumps(whole), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, nargs="+", default=[500, 150])
    parser.add_argument("--step-ms", type=float, nargs="+", default=[50.0, 250.0])
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--sleep", action="store_true", help="steps sleep: ranks share a GPU")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stuck-after", type=float, help="seconds; then every thread says where")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.small:
        args.chains, args.steps = 12, [20 for _ in args.step_ms]
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / "d")
        write_chains(Path(folder), args.chains, scale=0.15 if args.small else 1.0)
        meeting = str(Path(temporary) / "meeting")
        mp.start_processes(
            rank_main, (args, folder, meeting), nprocs=args.ranks, start_method="spawn"
        )


if __name__ == "__main__":
    main()

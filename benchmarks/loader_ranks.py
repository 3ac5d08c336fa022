"""Ranks of one host side by side: does any wait for another's data?

    PYTHONPATH=src python benchmarks/loader_ranks.py --ranks 4 --out ranks.json
    PYTHONPATH=src python benchmarks/loader_ranks.py --ranks 2 --device cpu --small --out r.json

Every rank loads, runs a step of matrix products, and meets the others at a barrier. The share of
the barrier that data causes is, step by step, the longest wait of any rank less one's own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from loader_gpu import Consumer, cpu_seconds, presets  # noqa: E402
from made_up_chains import SlowStorage, write_chains  # noqa: E402

from evofeed.loader import FeatureLoader  # noqa: E402
from evofeed.store import Dataset  # noqa: E402


def rank_main(rank: int, args: argparse.Namespace, folder: str, meeting: str) -> None:
    store = dist.FileStore(meeting, args.ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=args.ranks)
    torch.set_num_threads(1)
    device = "cpu"
    if args.device == "cuda":
        torch.cuda.set_device(rank)
        device = "cuda"
    dataset = Dataset.open(folder)
    slow = Dataset(SlowStorage(folder, 0.05), dataset.digest, dataset.manifest, dataset.index)
    config = presets(args.small)["initial_training"].replace(
        epoch_len=args.steps * args.ranks, global_batch_size=args.ranks
    )
    consumer = Consumer(device, args.step_ms / 1e3)
    waits, barriers = [], []
    with FeatureLoader(slow, config, rank=rank, world_size=args.ranks, device=device) as loader:
        stream = iter(loader)
        consumer.step(next(stream))
        dist.barrier()
        begun, cpu = time.perf_counter(), cpu_seconds(loader)
        for _ in range(args.steps - 1):
            asked = time.perf_counter()
            batch = next(stream)
            waits.append(time.perf_counter() - asked)
            consumer.step(batch)
            met = time.perf_counter()
            dist.barrier()
            barriers.append(time.perf_counter() - met)
        wall = time.perf_counter() - begun
        mine = {"waits": waits, "barriers": barriers, "cores": (cpu_seconds(loader) - cpu) / wall}
    everyone: list[Any] = [None] * args.ranks
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        save(args, everyone, wall)
    dist.destroy_process_group()


def save(args: argparse.Namespace, everyone: list[dict[str, Any]], wall: float) -> None:
    waits = np.array([one["waits"] for one in everyone])
    caused = waits.max(0) - waits
    result = {
        "command": f"python benchmarks/loader_ranks.py --ranks {args.ranks} --steps {args.steps}",
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else None,
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": args.ranks,
        "steps": args.steps,
        "step_ms": args.step_ms,
        "data_wait_p50_ms": float(np.percentile(waits, 50) * 1e3),
        "data_wait_p99_ms": float(np.percentile(waits, 99) * 1e3),
        "barrier_share_caused_by_data": float(caused.sum(1).max() / wall),
        "barrier_share_in_all": float(max(sum(one["barriers"]) for one in everyone) / wall),
        "cores_a_rank": float(np.mean([one["cores"] for one in everyone])),
    }
    Path(args.out).write_text(json.dumps(result, indent=1))
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if args.small:
        args.chains, args.steps = 12, 20
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / "d")
        write_chains(Path(folder), args.chains, scale=0.15 if args.small else 1.0)
        meeting = str(Path(temporary) / "meeting")
        mp.start_processes(
            rank_main, (args, folder, meeting), nprocs=args.ranks, start_method="spawn"
        )


if __name__ == "__main__":
    main()

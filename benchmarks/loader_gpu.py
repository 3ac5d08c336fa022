"""The loader on a GPU: right first, then fast. Makes its own data; one JSON file of figures.

PYTHONPATH=src python benchmarks/loader_gpu.py --out benchmarks/results/loader_h200.json
PYTHONPATH=src python benchmarks/loader_gpu.py --device cpu --small --out /tmp/loader.json
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# The reader process unpickles SlowStorage from this folder.
os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from loader_checks import compare_devices, hidden_syncs  # noqa: E402
from made_up_chains import SlowStorage, write_chains  # noqa: E402
from openfold_peer import StoredChains  # noqa: E402

from evofeed.loader import FeatureLoader, LoaderConfig, batch_maker  # noqa: E402
from evofeed.loader.arena import Arena  # noqa: E402
from evofeed.loader.batch_maker import BatchMaker, FilledSlot  # noqa: E402
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes  # noqa: E402
from evofeed.store import Dataset  # noqa: E402

Batch = dict[str, torch.Tensor]


def median(values: list[float]) -> dict[str, float]:
    array = np.array(values)
    low, middle, high = np.percentile(array, [25, 50, 75])
    return {"median": float(middle), "q25": float(low), "q75": float(high), "repeats": len(values)}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    array = np.array(seconds) * 1e3
    low, high = np.percentile(array, [50, 99])
    return {"p50": float(low), "p99": float(high), "max": float(array.max())}


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def presets(small: bool) -> dict[str, LoaderConfig]:
    more: dict[str, Any] = {"weighted": False}
    if small:
        more |= {"crop_size": 48, "max_msa_clusters": 16, "max_extra_msa": 64}
    return {
        "initial_training": LoaderConfig.initial_training(**more),
        "finetuning": LoaderConfig.finetuning(**more),
    }


class Consumer:
    """A training step of a given length, on the GPU or only in time.

    On the GPU: big matrix products that fill it, then a wait on a blocking event, as a trainer
    that reads its loss has it. The products are large, so that a step queues some hundred
    kernels at most: beyond about a thousand the driver makes every thread that queues spin,
    which would be counted against the loader. With `sleeps` the step only sleeps, for runs
    beside other work on the same GPU, and how long the features take to be made is given besides.
    """

    def __init__(self, device: str, seconds: float, *, sleeps: bool = False) -> None:
        self.device, self.seconds, self.sleeps = device, seconds, sleeps or device == "cpu"
        self.rounds = 0
        if not self.sleeps:
            self.a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
            self.out = torch.empty_like(self.a)
            self._run(600)  # about a second: clocks settle under load
            begun = time.perf_counter()
            self._run(300)
            self.rounds = max(1, round(300 * seconds / (time.perf_counter() - begun)))

    def _run(self, rounds: int) -> None:
        for _ in range(rounds):
            torch.mm(self.a, self.a, out=self.out)
        self.wait()

    def wait(self) -> None:
        """Until the GPU has done all it was given, without spinning."""
        event = torch.cuda.Event(blocking=True)
        event.record()
        event.synchronize()

    def step(self, batch: Batch) -> None:
        batch["msa_feat"].sum()
        if self.sleeps:
            time.sleep(self.seconds)
        else:
            self._run(self.rounds)

    def alone(self, batch: Batch, steps: int) -> dict[str, float]:
        """The step by itself, with one batch again and again: wall and CPU time of a step."""
        walls, cpu = [], time.process_time()
        for _ in range(steps):
            begun = time.perf_counter()
            self.step(batch)
            walls.append(time.perf_counter() - begun)
        used = time.process_time() - cpu
        return {
            "step_ms": float(np.median(walls) * 1e3),
            "cpu_ms": used / steps * 1e3,
            "cores": used / sum(walls),
        }


def feed(
    dataset: Dataset, config: LoaderConfig, consumer: Consumer, steps: int, *, fused: bool = True
) -> dict[str, Any]:
    """Run `steps` steps against the consumer and say what it waited for."""
    config, device = config.replace(epoch_len=max(steps // 4, 1)), consumer.device
    with FeatureLoader(dataset, config, device=device, seed=1, fused=fused) as loader:
        waits, until_made, gaps, walls = [], [], [], []
        done, begun, cpu, reader_cpu = 0, 0.0, 0.0, 0.0
        warm = 5
        while done < steps + warm:
            first = True
            stream = iter(loader)
            while True:
                called = time.perf_counter()
                batch = next(stream, None)
                waited = time.perf_counter() - called
                if batch is None:
                    break
                if device == "cuda":
                    consumer.wait()
                made = time.perf_counter() - called
                if done == warm:
                    begun, cpu = time.perf_counter(), cpu_seconds(loader)
                    reader_cpu = loader.stats()["reader_cpu_seconds"]
                if done > warm:
                    waits.append(waited)
                    until_made.append(made)
                    if first:
                        gaps.append(waited)
                first = False
                consumer.step(batch)
                last = batch
                del batch
                walls.append(time.perf_counter() - called)
                done += 1
                if done == steps + warm:
                    break
        wall = time.perf_counter() - begun
        used = cpu_seconds(loader) - cpu
        stats = loader.stats()
    alone = consumer.alone(last, 40 if consumer.seconds < 0.1 else 15)
    samples = steps * config.batch_size
    return {
        "step_seconds": consumer.seconds,
        "consumer": "sleeps" if consumer.sleeps else "matrix products",
        "steps": steps,
        "step_alone": alone,
        # Of the whole run: this process and the reader; then without what the step itself takes.
        "cpu_ms_a_sample_and_step": used / samples * 1e3,
        "cpu_ms_a_sample": used / samples * 1e3 - alone["cpu_ms"],
        "cpu_ms_a_sample_of_the_reader": (stats["reader_cpu_seconds"] - reader_cpu) / samples * 1e3,
        "data_wait_ms": {**percentiles(waits), "share_of_wall": sum(waits) / wall},
        "until_features_are_made_ms": percentiles(until_made),
        "epoch_gap_ms_max": max(gaps, default=0.0) * 1e3,
        "cores": used / wall,
        "step_ms_median": float(np.median(walls) * 1e3),
        "mb_per_sample": stats["bytes_per_sample"] / 1e6,
        "make_host_ms": stats["make_host"],
        "make_device_ms": stats["make_device"],
        "read_ms": stats["read"],
        "respawns": stats["reader_respawns"],
    }


def cpu_seconds(loader: FeatureLoader) -> float:
    """CPU time of this process and of the loader's reader."""
    return time.process_time() + float(loader.stats()["reader_cpu_seconds"])


def featurize_times(
    dataset: Dataset, config: LoaderConfig, device: str, chains: int, *, fused: bool
) -> dict[str, Any]:
    """Time of one recycle's features and of the constant part, on an idle device."""
    times: dict[int, list[float]] = {1: [], 4: []}
    host: dict[int, list[float]] = {1: [], 4: []}
    options: dict[str, Any] = {"reader": "thread", "ready": 1, "fused": fused}
    for recycles in times:
        fixed = config.replace(uniform_recycling=False, max_recycling_iters=recycles - 1)
        with (
            mock.patch.object(batch_maker, "_TIMED", 1),  # every batch's time on the device
            FeatureLoader(dataset, fixed, device=device, **options) as loader,
        ):
            next(iter(loader))
            for _, _ in zip(range(chains), loader, strict=False):
                sync(device)
            stats = loader._stats
            times[recycles] = list(stats.device._latest)[2:]
            host[recycles] = list(stats.host._latest)[2:]
    each = (np.median(times[4]) - np.median(times[1])) / 3
    return {
        "device_ms_a_recycle": float(each * 1e3),
        "device_ms_constant": float((np.median(times[1]) - each) * 1e3),
        "device_ms_one_recycle_batch": median([t * 1e3 for t in times[1]]),
        "device_ms_four_recycle_batch": median([t * 1e3 for t in times[4]]),
        "host_ms_one_recycle_batch": median([t * 1e3 for t in host[1]]),
        "host_ms_four_recycle_batch": median([t * 1e3 for t in host[4]]),
    }


def host_cost(
    dataset: Dataset, config: LoaderConfig, device: str, *, fused: bool
) -> dict[str, Any]:
    """CPU time of a thread that does a sample's work, by stage, nothing else running.

    A round is a dozen samples of one stage between two looks at the thread's clock, which
    itself takes tens of microseconds on some machines. In plain torch it is one sample: more
    than about a thousand launches fill the driver's queue, and the thread would spin.
    """
    rounds, samples = (6, 12) if fused else (12, 1)
    loader = FeatureLoader(dataset, config, device=device, reader="thread", fused=fused)
    planner, catalog = loader.planner, loader._catalogs[0]
    arena = Arena(8 * loader._wanted_nbytes())
    if device == "cuda":
        arena.pin()
    maker = BatchMaker([catalog], config, arena, loader.device, fused=loader._fused)
    plans = planner.batches(0, 0)
    times: dict[str, list[float]] = {"plan": [], "read_and_check": [], "queue": []}
    for number in range(rounds):
        marks = [time.thread_time()]
        requests = []
        for plan in itertools.islice(plans, samples):
            place = catalog.place(plan.samples[0].row)
            nbytes = slot_nbytes(place, True) + maker.words_nbytes(place)
            offset = arena.allocate(nbytes)
            assert offset is not None
            requests.append((plan, ReadRequest(0, place, True, True, offset, nbytes)))
        marks.append(time.thread_time())
        filled = []
        for plan, request in requests:
            with memoryview(arena.memory)[request.offset :][: request.nbytes] as slot:
                slab = read_chain(dataset.storage, request, slot)
            filled.append((plan, FilledSlot(plan.samples[0], slab, request.offset)))
        marks.append(time.thread_time())
        for plan, slot in filled:
            maker.make(plan, [slot]).hand_over()
        marks.append(time.thread_time())
        sync(device)
        maker.reclaim()
        if number:
            for name, spent in zip(times, np.diff(marks), strict=True):
                times[name].append(float(spent) * 1e3 / len(requests))
    maker.close()
    arena.close()
    times["all"] = [sum(parts) for parts in zip(*times.values(), strict=True)]
    return {f"{name}_cpu_ms": median(values) for name, values in times.items()}


def queued_work(dataset: Dataset, config: LoaderConfig, *, fused: bool) -> dict[str, float]:
    """What a sample asks of the driver and of the GPU, by torch's own profiler."""
    from torch.profiler import ProfilerActivity, profile

    count = 12
    options: dict[str, Any] = {"reader": "thread", "fused": fused, "seed": 2}
    with FeatureLoader(dataset, config, device="cuda", **options) as loader:
        stream = iter(loader)
        next(stream)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            before = loader.stats()["samples"]
            for _ in range(count):
                next(stream)
            torch.cuda.synchronize()
            made = loader.stats()["samples"] - before
    events = seen.events() or []
    on_device = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA]
    kernels = [e for e in on_device if "Mem" not in e.name]
    return {
        "samples": made,
        "kernels_a_sample": len(kernels) / made,
        "copies_and_fills_a_sample": (len(on_device) - len(kernels)) / made,
        "torch_operators_a_sample": sum(e.name.startswith("aten::") for e in events) / made,
        "device_busy_ms_a_sample": sum(e.self_device_time_total for e in on_device) / made / 1e3,
        "dearest_kernels_us_a_sample": {  # type: ignore[dict-item]
            e.key: e.self_device_time_total / made
            for e in sorted(seen.key_averages(), key=lambda e: -e.self_device_time_total)[:14]
        },
    }


def cold_start(folder: str, config: LoaderConfig, device: str, repeats: int) -> dict[str, float]:
    times = []
    for _ in range(repeats):
        sync(device)
        begun = time.perf_counter()
        with FeatureLoader(Dataset.open(folder), config, device=device) as loader:
            next(iter(loader))
            sync(device)
            times.append(time.perf_counter() - begun)
    return median(times)


def copy_bandwidth(nbytes: int) -> dict[str, float]:
    """GB/s of copies out of the arena, beside torch's own pinned memory."""
    arena = Arena(nbytes * 4)
    arena.pin()
    ours = torch.from_numpy(arena.array)[4096 : 4096 + nbytes]
    theirs = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    speeds = {}
    for name, source in (("arena", ours), ("pinned", theirs)):
        rates = []
        for _ in range(30):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            rates.append(nbytes / begin.elapsed_time(end) / 1e6)
        speeds[f"{name}_gb_per_s"] = float(np.median(rates[5:]))
    speeds["arena_share_of_pinned"] = speeds["arena_gb_per_s"] / speeds["pinned_gb_per_s"]
    speeds["is_registered"] = float(arena.is_pinned)
    del ours
    arena.close()
    return speeds


def baseline(
    chains: torch.utils.data.Dataset, consumer: Consumer, steps: int, workers: int
) -> dict[str, Any]:
    """A torch DataLoader with that many workers and OpenFold's transforms, same consumer."""
    device = consumer.device
    loader: torch.utils.data.DataLoader[Batch] = torch.utils.data.DataLoader(
        chains,
        batch_size=None,
        num_workers=workers,
        pin_memory=device == "cuda",
        multiprocessing_context="spawn",
    )
    waits, nbytes, begun, cpu, children = [], 0, 0.0, 0.0, 0.0
    stream = iter(loader)
    warm = workers
    for number in range(steps + warm):
        called = time.perf_counter()
        batch = {k: v.to(device, non_blocking=True) for k, v in next(stream).items()}
        waited = time.perf_counter() - called
        if number == warm:
            begun, cpu, children = time.perf_counter(), time.process_time(), cpu_of_children()
        if number > warm:
            waits.append(waited * 1e3)
            nbytes += sum(v.nbytes for v in batch.values())
        consumer.step(batch)
    wall = time.perf_counter() - begun
    used = cpu_of_children() - children + time.process_time() - cpu
    del stream
    return {
        "transforms": "OpenFold's own, four recycles, from the same chains decoded from the shard",
        "workers": workers,
        "steps": steps,
        "step_seconds": consumer.seconds,
        "data_wait_ms": {
            "p50": float(np.percentile(waits, 50)),
            "p99": float(np.percentile(waits, 99)),
            "max": max(waits),
            "share_of_wall": sum(waits) / 1e3 / wall,
        },
        "cores": used / wall,
        "cpu_ms_a_sample": used / steps * 1e3,
        "mb_per_sample": nbytes / max(len(waits), 1) / 1e6,
        "wall_seconds": wall,
    }


def cpu_of_children() -> float:
    """CPU seconds of our living children so far."""
    tick = os.sysconf("SC_CLK_TCK")
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def machine(device: str) -> dict[str, Any]:
    return {
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/loader_gpu.py "
        + " ".join(a for a in sys.argv[1:] if "/" not in a),
    }


def run_stages(
    args: argparse.Namespace,
    dataset: Dataset,
    folder: str,
    result: dict[str, Any],
    save: Callable[[str], None],
) -> None:
    """The asked-for parts, in order; the figures so far are saved after each."""
    stages, device, small = set(args.stages.split()), args.device, args.small
    sizes = presets(small)
    if "devices" in stages:
        result["devices_agree"] = {
            name: compare_devices(dataset, config, device, 2 if small else 6)
            for name, config in sizes.items()
        }
        save("devices agree")
    if "copy" in stages and device == "cuda":
        result["hidden_syncs"] = hidden_syncs(dataset, sizes["initial_training"], 12)
        save(f"hidden syncs: {result['hidden_syncs']}")
        result["copy"] = {f"{mb}_mb": copy_bandwidth(mb << 20) for mb in (1, 4, 16)}
        save(f"copies: {result['copy']['4_mb']}")
    slow = Dataset(SlowStorage(folder, 0.05), dataset.digest, dataset.manifest, dataset.index)
    for name, config in sizes.items():
        if args.preset not in (None, name):
            continue
        here = result["presets"][name] = {}
        if "host" in stages:
            here["host"] = {
                kind: host_cost(dataset, config, device, fused=fused)
                for kind, fused in (("kernels", True), ("plain_torch", False))
            }
            save(f"{name} host: {here['host']}")
        if "featurize" in stages:
            for kind, fused in (("featurize", True), ("featurize_in_plain_torch", False)):
                count = 8 if small else 24
                here[kind] = featurize_times(dataset, config, device, count, fused=fused)
                if device == "cuda":
                    here[kind]["queued"] = queued_work(dataset, config, fused=fused)
                save(f"{name} {kind}: {here[kind]}")
        if "cold" in stages:
            here["cold_start_seconds"] = cold_start(folder, config, device, 2 if small else 5)
            save(f"{name}: cold start {here['cold_start_seconds']}")
        for seconds, steps in _lengths(args, stages):
            gc.collect()
            consumer = Consumer(device, seconds, sleeps=args.sleep)
            key = f"step_{int(seconds * 1e3)}_ms"
            if "feed" in stages:
                here[key] = feed(slow, config, consumer, steps)
                save(f"{name} at {seconds} s: {here[key]}")
            if "plain" in stages:
                here[f"{key}_in_plain_torch"] = feed(slow, config, consumer, steps, fused=False)
                save(f"{name} in plain torch: {here[f'{key}_in_plain_torch']}")
            if args.openfold is not None and "peer" in stages:
                steps = min(steps, args.peer_steps)
                chains = StoredChains(slow, args.openfold, name, steps + args.workers)
                here[f"{key}_openfold_dataloader"] = baseline(chains, consumer, steps, args.workers)
                save(f"{name}, torch DataLoader: {here[f'{key}_openfold_dataloader']}")


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
    parser.add_argument("--stages", default="devices copy host featurize cold feed plain peer")
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
    result: dict[str, Any] = {"machine": machine(device), "presets": {}}

    def save(note: str) -> None:
        Path(args.out).write_text(json.dumps(result, indent=1))
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
        save(f"made {len(dataset)} chains")
        run_stages(args, dataset, folder, result, save)
    save("done")


if __name__ == "__main__":
    main()

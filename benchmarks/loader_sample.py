"""What one sample costs on its way to the GPU: copies, features, CPU time by stage, first batch."""

from __future__ import annotations

import itertools
import time
from typing import Any
from unittest import mock

import numpy as np
import torch

from evofeed.loader import FeatureLoader, LoaderConfig, batch_maker
from evofeed.loader.arena import Arena
from evofeed.loader.batch_maker import BatchMaker, FilledSlot
from evofeed.loader.read_chain import ReadRequest, read_chain, slot_nbytes
from evofeed.store import Dataset


def median(values: list[float]) -> dict[str, float]:
    array = np.array(values)
    low, middle, high = np.percentile(array, [25, 50, 75])
    return {"median": float(middle), "q25": float(low), "q75": float(high), "repeats": len(values)}


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


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
    arena = Arena(8 * loader._default_arena_nbytes())
    if device == "cuda":
        arena.pin()
    maker = BatchMaker([catalog], config, arena, loader.device, fused=loader._fused)
    plans = planner.batches(0, 0)
    times: dict[str, list[float]] = {"plan": [], "read_and_check": [], "queue": []}
    for number in range(rounds):
        marks = [time.thread_time()]
        requests = []
        for plan in itertools.islice(plans, samples):
            location = catalog.location(plan.samples[0].row)
            nbytes = slot_nbytes(location, True) + maker.words_nbytes()
            offset = arena.allocate(nbytes)
            assert offset is not None
            requests.append((plan, ReadRequest(0, location, True, True, offset, nbytes)))
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

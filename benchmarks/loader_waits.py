"""How long a training step waits for its batch: behind our loader, and behind a DataLoader."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evofeed.loader import FeatureLoader, LoaderConfig
from evofeed.store import Dataset

Batch = dict[str, torch.Tensor]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds."""
    array = np.array(seconds) * 1e3
    low, high = np.percentile(array, [50, 99])
    return {"p50": float(low), "p99": float(high), "max": float(array.max())}


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

"""A pretended training loop around a loader, and what it saw."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from evofeed.loader.feature_loader import FeatureLoader


def measure(loader: FeatureLoader, steps: int, step_seconds: float) -> dict[str, Any]:
    """Take `steps` batches, sleeping `step_seconds` on each; times in milliseconds.

    The first batch is reported by itself: it pays for starting. `cores` is CPU time
    of this process and its reader over wall time, the pretended step's sleep
    being free.
    """
    waits: list[float] = []
    begun = cpu = first = 0.0
    start = time.perf_counter()
    while len(waits) < steps - 1:
        stream = iter(loader)
        while len(waits) < steps - 1:
            called = time.perf_counter()
            batch = next(stream, None)
            if batch is None:
                break
            if loader.device.type == "cuda":
                torch.cuda.current_stream(loader.device).synchronize()
            waited = time.perf_counter() - called
            if not begun:
                first = time.perf_counter() - start
                begun, cpu = time.perf_counter(), _cpu_seconds(loader)
            else:
                waits.append(waited)
            time.sleep(step_seconds)
    wall, used = time.perf_counter() - begun, _cpu_seconds(loader) - cpu
    stats = loader.stats()
    array = np.array(waits) * 1e3
    return {
        "device": str(loader.device),
        "steps": steps,
        "step_ms": step_seconds * 1e3,
        "first_batch_ms": first * 1e3,
        "wait_p50_ms": float(np.percentile(array, 50)),
        "wait_p99_ms": float(np.percentile(array, 99)),
        "wait_share": float(array.sum() / 1e3 / wall),
        "samples_per_second": steps * loader.config.batch_size / wall,
        "cores": used / wall,
        "cpu_ms_per_sample": used * 1e3 / ((steps - 1) * loader.config.batch_size),
        "mb_per_sample": stats["bytes_per_sample"] / 1e6,
        "make_host_p50_ms": stats["make_host"]["p50_ms"],
        "make_device_p50_ms": stats["make_device"]["p50_ms"],
        "read_p50_ms": stats["read"]["p50_ms"],
        "bad_chains": len(stats["bad_chains"]),
    }


def _cpu_seconds(loader: FeatureLoader) -> float:
    return time.process_time() + float(loader.stats()["reader_cpu_seconds"])

"""Clocks for one GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Row = dict[str, Any]
Call = Callable[[], Any]


def gpu_times(calls: list[Call], repeats: int = 40) -> dict[str, float]:
    """Median and quartiles of the GPU time of one call, in microseconds."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    times: list[float] = []
    while len(times) < repeats:
        torch.cuda._sleep(100_000_000)  # about 50 ms: the launches queue up behind it
        events = []
        for n in range(min(20, repeats - len(times))):
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            calls[n % len(calls)]()
            pair[1].record()
            events.append(pair)
        torch.cuda.synchronize()
        times += [1e3 * a.elapsed_time(b) for a, b in events]
    q1, median, q3 = statistics.quantiles(times, n=4)
    return {"us": round(median, 2), "q1": round(q1, 2), "q3": round(q3, 2)}


def wall_us(calls: list[Call], repeats: int = 60) -> float:
    """Wall time of one call in a loop, in microseconds; best of three loops."""
    return walls_us({"": calls}, 3, repeats)[""]


def walls_us(turns: dict[str, list[Call]], rounds: int = 10, repeats: int = 30) -> dict[str, float]:
    """`wall_us` of several, loop by loop in turn: a host's pace changes from minute to minute."""
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(rounds):
        for who, calls in turns.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for n in range(repeats):
                calls[n % len(calls)]()
            torch.cuda.synchronize()
            best[who] = min(best[who], 1e6 * (time.perf_counter() - start) / repeats)
    return {who: round(us, 1) for who, us in best.items()}


def graphed(call: Call) -> Call:
    """The call captured in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def peak_mb(call: Call) -> float:
    """Memory a call needs beyond what was allocated before it, in MB."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)

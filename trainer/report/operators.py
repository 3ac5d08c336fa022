"""Time of the operators of a few profiled steps, by group, and the device's busy share.

On a GPU the profiler (CUPTI) times every kernel of the sampled steps, without
CPU tracing, which would slow launches down. Kernels outside the training stream
belong to the loader. A one-cycle marker kernel at each boundary assigns kernels
to parts of the step. On a CPU the operators' self time counts.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from evofeed.kernels import kernel_groups
from evofeed.trainer.log.clock import StepClock

_OTHERS = {
    "communication": r"nccl|gloo|all_?reduce",
    "optimizer": r"adam|lamb_|lerp|multi_tensor",
    "norm": r"layer_?norm|moments|gammabeta",
    "attention": r"attention|flash|fmha|softmax",
    "gemm": r"gemm|cutlass|cublas|nvjet|splitk|::(b?mm|addmm|baddbmm|matmul|linear|einsum)",
    "memory": r"memcpy|memset",
}
"""Names of the kernels of PyTorch, cuBLAS and NCCL, by group; others count as elementwise (and
reductions). Kernels of `evofeed.kernels` declare their group."""

_Groups = dict[str, dict[str, float]]
"""Seconds and launches by group."""
_MARKER = "spin_kernel"  # torch.cuda._sleep's


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or copy on the device; times in nanoseconds of the device's clock."""

    name: str
    stream: int
    start: int
    duration: int


@cache  # a step launches tens of thousands of kernels of a few hundred names
def group_of(name: str) -> str:
    """The group of a kernel or operator, by its name."""
    matches = (group for group, words in _OTHERS.items() if re.search(words, name, re.IGNORECASE))
    declared: str | None = kernel_groups().get(name)
    return declared or next(matches, "elementwise")


def busy_share(kernels: Sequence[Kernel]) -> float:
    """Share of the time from the first start to the last end in which a kernel ran."""
    spans = sorted((k.start, k.start + k.duration) for k in kernels)
    if not spans:
        return 0.0
    busy, reached = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return busy / max(1, reached - spans[0][0])


def group_kernels(kernels: Sequence[Kernel], parts: Sequence[str]) -> _Groups:
    """Seconds and launches by group; `parts` names the part that begins at each marker kernel.

    All kernels of the optimizer part count as `optimizer`. Kernels on other streams
    than the markers' are the loader's: `h2d` copies and `featurize` kernels.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    streams = {kernel.stream for kernel in ordered if _MARKER in kernel.name}
    groups: _Groups = {}
    names, part = iter(parts), ""
    for kernel in ordered:
        if _MARKER in kernel.name:
            part = next(names, "")
            continue
        group = group_of(kernel.name)
        if group != "communication" and streams and kernel.stream not in streams:
            group = "h2d" if "HtoD" in kernel.name else "featurize"
        elif part == "optimizer" and group != "communication":
            group = "optimizer"
        _add(groups, group, kernel.duration / 1e9, 1)
    return groups


def _add(groups: _Groups, group: str, seconds: float, launches: int) -> None:
    entry = groups.setdefault(group, {"seconds": 0.0, "launches": 0.0})
    entry["seconds"] += seconds
    entry["launches"] += launches


class OperatorSampler:
    """Profiles `steps` steps from step `first` on; give `watch` to the loop."""

    def __init__(self, clock: StepClock, *, first: int, steps: int) -> None:
        self.result: dict[str, Any] = {}
        self.sampled = range(first, first + steps)
        self._clock = clock
        self._cuda = clock.on_gpu
        self._profile: profile | None = None
        self._parts: list[str] = []

    def watch(self, step: int) -> None:
        """Starts or stops the profiler if `step` is the one for it; called before each step."""
        if self._profile is None and step == self.sampled.start and self.sampled:
            self._begin()
        elif self._profile is not None and step == self.sampled.stop:
            self.close()

    def close(self) -> None:
        """Stops the profiler and sums up, if it runs."""
        if self._profile is None:
            return
        done, self._profile = self._profile, None
        if self._cuda:
            torch.cuda.synchronize()
        self._clock.marker = None
        with _quiet():
            done.stop()
            if not self._cuda:
                averages = done.key_averages()
        if self._cuda:
            kernels = [
                Kernel(e.name(), e.device_resource_id(), e.start_ns(), e.duration_ns())
                for e in done.profiler.kineto_results.events()  # type: ignore[union-attr]
                if e.device_type() == DeviceType.CUDA
            ]
            self._sum_up(group_kernels(kernels, self._parts), busy_share(kernels) or None)
        else:
            groups: _Groups = {}
            for entry in averages:
                _add(groups, group_of(entry.key), entry.self_cpu_time_total / 1e6, entry.count)
            self._sum_up(groups, None)

    def _begin(self) -> None:
        activity = ProfilerActivity.CUDA if self._cuda else ProfilerActivity.CPU
        self._profile = profile(activities=[activity])
        with _quiet():
            self._profile.start()
        if self._cuda:
            torch.cuda.synchronize()
            self._clock.marker = self._mark

    def _mark(self, part: str) -> None:
        self._parts.append(part)
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]

    def _sum_up(self, groups: _Groups, busy: float | None) -> None:
        steps, total = len(self.sampled), sum(entry["seconds"] for entry in groups.values())
        self.result = {
            "steps": steps,
            "first_step": self.sampled.start,
            "gpu_busy_share": busy,
            "groups": {
                name: {
                    "seconds_per_step": entry["seconds"] / steps,
                    "launches_per_step": entry["launches"] / steps,
                    "share": entry["seconds"] / total if total else 0.0,
                }
                for name, entry in sorted(groups.items(), key=lambda item: -item[1]["seconds"])
            },
        }


@contextmanager
def _quiet() -> Iterator[None]:
    """A context without file descriptor 2: kineto's probes write there through the progress bar."""
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        with warnings.catch_warnings():  # some versions warn that events do not accumulate
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)

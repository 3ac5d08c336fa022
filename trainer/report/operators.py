"""Operators of a few profiled steps by group, and how busy the device was.

On a GPU every kernel of the sampled steps is timed by the profiler (CUPTI), with
no CPU tracing that would slow the launches down. Kernels of other streams than
the training stream are the loader's. A one-cycle marker kernel at each boundary
says which part of the step a kernel belongs to. On a CPU it is the operators'
own time.
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
"""By group what PyTorch, cuBLAS and NCCL call theirs; what has none of these names goes element by
element, or sums up. Kernels of `evofeed.kernels` say their own group."""

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
    """The group a kernel or operator belongs to by its name."""
    theirs = (group for group, words in _OTHERS.items() if re.search(words, name, re.IGNORECASE))
    own: str | None = kernel_groups().get(name)
    return own or next(theirs, "elementwise")


def busy_share(kernels: Sequence[Kernel]) -> float:
    """Share of the time from the first start to the last end in which something ran."""
    spans = sorted((k.start, k.start + k.duration) for k in kernels)
    if not spans:
        return 0.0
    busy, reached = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reached))
        reached = max(reached, end)
    return busy / max(1, reached - spans[0][0])


def group_kernels(kernels: Sequence[Kernel], parts: Sequence[str]) -> _Groups:
    """Seconds and launches by group; `parts` names what begins at each marker kernel.

    Everything of the optimizer part counts as `optimizer`. What runs on another
    stream than the markers' is the loader's: `h2d` copies and `featurize` kernels.
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
        """Start or stop at the right steps; called before each step."""
        if self._profile is None and step == self.sampled.start and self.sampled:
            self._begin()
        elif self._profile is not None and step == self.sampled.stop:
            self.close()

    def close(self) -> None:
        """Stop and sum up, if running."""
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
            for one in averages:
                _add(groups, group_of(one.key), one.self_cpu_time_total / 1e6, one.count)
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
        steps, total = len(self.sampled), sum(one["seconds"] for one in groups.values())
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
    """Nothing on file descriptor 2: kineto's probes write there through the progress bar."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with warnings.catch_warnings():  # some versions warn that events do not accumulate
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)

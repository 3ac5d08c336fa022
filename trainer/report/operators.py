"""What the device did in a few sampled steps: operators by group, and how busy it was.

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

GROUPS: dict[str, str] = {
    "communication": r"nccl|all_?reduce|broadcast_coalesced|gloo",
    # C++ names are full of `lambda` and `scalars`.
    "optimizer": r"adam|lamb(?!da)|(?<!sca)lars|lerp|ema_|multi_tensor",
    "norm": r"layer_?norm|rms_?norm|_ln_|norm_(fwd|bwd)|rowwise_moments|GammaBeta|moments",
    "attention": r"attn|attention|flash|fmha|softmax|sdpa",
    "gemm": r"gemm|cutlass|cublas|nvjet|xmma|wgmma|splitK|^sum_splits_kernel|"
    r"aten::(mm|bmm|addmm|matmul|linear|einsum|baddbmm)",
    "elementwise": r"elementwise|vectorized|reduce|aten::(add|sub|mul|div|sum|mean|relu|sigmoid|"
    r"native_dropout|exp|log|sqrt|neg|where|clamp|threshold|copy|clone|cat|fill|zero|gelu|pow|eq|"
    r"norm|index|gather|scatter|embedding|bernoulli|abs|rsub|max|min|amax|linalg)|"
    r"dropped_kernel|copy|fill|cat|index|scatter|gather|dropout|sigmoid|triton_poi|triton_red|distribution",
    "memory": r"memcpy|memset",
}
"""Group by the first pattern found in a kernel's or operator's name, in this order.

Kernels of `evofeed.kernels` say theirs: a fused product with its norm and gate counts as gemm.
"""

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
    """The group a kernel or operator belongs to by its name; `other` if none fits."""
    own: str | None = kernel_groups().get(name)
    if own is not None:
        return own
    for group, pattern in GROUPS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return group
    return "other"


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


def group_kernels(kernels: Sequence[Kernel], parts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Seconds and launches by group; `parts` names what begins at each marker kernel.

    Everything of the optimizer part counts as `optimizer`. What runs on another
    stream than the markers' is the loader's: `h2d` copies and `featurize` kernels.
    """
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    streams = {kernel.stream for kernel in ordered if _MARKER in kernel.name}
    groups: dict[str, dict[str, float]] = {}
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
        entry = groups.setdefault(group, {"seconds": 0.0, "launches": 0.0})
        entry["seconds"] += kernel.duration / 1e9
        entry["launches"] += 1
    return groups


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
        if self._cuda:
            torch.cuda.synchronize()
        self._clock.marker = None
        with _quiet():
            self._profile.stop()
        results = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        self._profile = None
        self.result = self._summary(results)

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

    def _summary(self, events: Sequence[Any]) -> dict[str, Any]:
        device = DeviceType.CUDA if self._cuda else DeviceType.CPU
        found = [
            Kernel(e.name(), e.device_resource_id(), e.start_ns(), e.duration_ns())
            for e in events
            if e.device_type() == device
        ]
        steps = len(self.sampled)
        groups = group_kernels(found, self._parts) if self._cuda else _self_times(found)
        total = sum(entry["seconds"] for entry in groups.values())
        return {
            "steps": steps,
            "first_step": self.sampled.start,
            "gpu_busy_share": busy_share(found) if self._cuda and found else None,
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


def _self_times(events: Sequence[Kernel]) -> dict[str, dict[str, float]]:
    """Own time by group of nested CPU operators: each one's time less its children's."""
    groups: dict[str, dict[str, float]] = {}
    for thread in {event.stream for event in events}:
        own: list[tuple[Kernel, int]] = []
        stack: list[int] = []
        for event in sorted(
            (e for e in events if e.stream == thread), key=lambda e: (e.start, -e.duration)
        ):
            while stack and own[stack[-1]][0].start + own[stack[-1]][0].duration <= event.start:
                stack.pop()
            if stack:
                parent, left = own[stack[-1]]
                own[stack[-1]] = (parent, left - event.duration)
            stack.append(len(own))
            own.append((event, event.duration))
        for event, nanoseconds in own:
            entry = groups.setdefault(group_of(event.name), {"seconds": 0.0, "launches": 0.0})
            entry["seconds"] += nanoseconds / 1e9
            entry["launches"] += 1
    return groups

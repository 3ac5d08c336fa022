# mypy: disable-error-code="no-untyped-call"
"""Measured share of a step's GPU time in swapped modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from evofeed.kernels.fused_module import Fused
from evofeed.kernels.graphs.recorded import denoises, paused

_RANGE = "evofeed::swapped"


def swapped_share(model: nn.Module, step: Callable[[], Any]) -> float:
    """Share of the GPU time of one step that swapped modules take, forward and backward.

    Args:
        model: a model after `to_fused`.
        step: runs the model once, with its backward pass if that is to count. It is
            called twice; the first call compiles. Without a GPU, CPU time is measured.
            Modules with CUDA graphs run without them.

    Returns:
        0 to 1; 0 if nothing was measured.
    """
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    step()
    with paused(), _marked(model), profile(activities=activities, acc_events=True) as profiler:
        step()
        if on_gpu:
            torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CPU]  # type: ignore[attr-defined]
    swapped = {e.sequence_nr for e in events if e.sequence_nr >= 0 and _inside(e)}
    total = inside = 0.0
    for event in events:
        on_device = sum(kernel.duration for kernel in event.kernels)
        spent = on_device if on_gpu else event.self_cpu_time_total
        total += spent
        if spent and (_inside(event) or _backward_number(event) in swapped):
            inside += spent
    return inside / total if total else 0.0


def _inside(event: Any) -> bool:
    """True if an event is in the forward of a swapped module."""
    while event is not None:
        if event.name == _RANGE:
            return True
        event = event.cpu_parent
    return False


def _backward_number(event: Any) -> int | None:
    """Number of the forward operation whose gradient an event is part of."""
    while event is not None:
        if event.name.startswith("autograd::engine::evaluate_function"):
            return int(event.sequence_nr)
        event = event.cpu_parent
    return None


@contextmanager
def _marked(model: nn.Module) -> Iterator[None]:
    """Marks every call of a swapped module with a profiler range."""
    open_ranges: list[Any] = []

    def enter(module: nn.Module, arguments: Any) -> None:
        mark = record_function(_RANGE)
        mark.__enter__()
        open_ranges.append(mark)

    def leave(module: nn.Module, arguments: Any, result: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    handles = []
    for module in model.modules():
        if isinstance(module, Fused) and not denoises(module):
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()

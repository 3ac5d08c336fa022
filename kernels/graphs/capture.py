# mypy: disable-error-code="no-untyped-call"
"""One CUDA graph: a function recorded once, and what replays it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

_streams: dict[torch.device, torch.cuda.Stream] = {}


def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream of a device that graphs are recorded on."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def record_graph(
    device: torch.device, pool: Any, function: Callable[[], Any]
) -> tuple[Any, Callable[[], None]]:
    """What `function` makes, at addresses that stay, and what makes it again there.

    Args:
        device: a GPU.
        pool: memory that other recordings use too (`torch.cuda.graph_pool_handle()`), or None
            for memory of its own.
        function: must not wait for the device.

    Raises:
        RuntimeError: it cannot be recorded; the random generator is as if it had not been tried.
    """
    generator = torch.cuda.default_generators[device.index]
    state, graph = generator.clone_state(), torch.cuda.CUDAGraph()
    # `torch.compile` leaves cycles that hold the pass it compiled in: its parameters' nodes belong
    # to the stream of that pass, which a recording may not wait for.
    gc.collect()
    # thread_local: a loader's thread allocates meanwhile.
    how = {
        "pool": pool, "stream": recording_stream(device), "capture_error_mode": "thread_local",
    }  # fmt: skip
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, **how):
            found = function()
    except RuntimeError:
        # A recording cut short leaves a generator in its capturing state.
        generator.graphsafe_set_state(state)
        raise
    return found, graph.replay

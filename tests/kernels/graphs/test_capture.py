"""What goes before a recording begins; torch's own parts of it are stand-ins here."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from evofeed.kernels.graphs import recording


def test_what_a_compiler_left_in_cycles_is_gone_before_a_recording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `torch.compile` leaves the first pass: its nodes belong to the stream of that pass."""
    inside: list[Any] = []
    for name in ("CUDAGraph", "default_generators"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **how: contextlib.nullcontext())
    monkeypatch.setattr(recording, "_recording_stream", lambda device: None)
    gc.collect()
    weight = torch.ones(2, requires_grad=True)
    cycle: dict[str, Any] = {"pass": (2 * weight).sum()}
    cycle["itself"] = cycle
    node = weakref.ref(cycle["pass"])
    del cycle
    assert node() is not None
    gc.disable()
    try:
        recording.record_graph(torch.device("cuda", 0), None, lambda: inside.append(node()))
    finally:
        gc.enable()
    assert inside == [None]

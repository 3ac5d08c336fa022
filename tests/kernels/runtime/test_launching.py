"""Which launches are repeated as they were, and which go through Triton's own entry again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from evofeed.kernels.runtime import launching


class Compiled:
    """What Triton hands back: `run` with the launcher's arguments."""

    function, packed_metadata = 7, (4, 1, 0)

    def __init__(self) -> None:
        self.runs: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.runs.append(arguments)


class Kernel:
    """A kernel of three arguments and a compile-time one."""

    arg_names = ("x", "y", "n", "BLOCK")

    def __init__(self) -> None:
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def first(*args: Any, **meta: Any) -> Compiled:
            self.compiled.append(Compiled())
            return self.compiled[-1]

        return first


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors pass for those of device 0."""
    monkeypatch.setattr(launching, "INTERPRETER", False)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)


@pytest.mark.usefixtures("gpu")
def test_the_same_launch_is_repeated_with_new_addresses() -> None:
    kernel, meta = Kernel(), {"BLOCK": 64, "num_warps": 4}
    for _ in range(2):
        x = torch.empty(64)
        launching.launch(kernel, (5, 2), (x, None, 3), meta)
    (compiled,) = kernel.compiled
    at = x.data_ptr()
    assert len(compiled.runs) == 1 and compiled.runs[0][:3] == (5, 2, 1) and at in compiled.runs[0]


@pytest.mark.usefixtures("gpu")
def test_what_triton_compiles_anew_is_never_mixed_up() -> None:
    kernel, x = Kernel(), torch.empty(64)
    launches: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, x, 16), {"BLOCK": 64}), ((x, None, 16), {"BLOCK": 64}), ((x, x, 1), {"BLOCK": 64}),
        ((x, x, 17), {"BLOCK": 64}), ((x, x, 16), {"BLOCK": 32}), ((x, x, 2**40), {"BLOCK": 64}),
        ((x.half(), x, 16), {"BLOCK": 64}), ((x, x.half(), 16), {"BLOCK": 64}),
        ((x[1:], x, 16), {"BLOCK": 64}), ((x, x[1:], 16), {"BLOCK": 64}),
    ]  # fmt: skip
    for _ in range(3):
        for args, meta in launches:
            launching.launch(kernel, (1,), args, meta)
    assert [len(compiled.runs) for compiled in kernel.compiled] == [2] * len(launches)


@pytest.mark.usefixtures("gpu")
def test_ever_new_sizes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MOST", 10)
    kernel, x = Kernel(), torch.empty(64)
    for n in range(35):
        launching.launch(kernel, (1,), (x, x, n), {"BLOCK": 64})
    assert len(launching._compiled) <= 10

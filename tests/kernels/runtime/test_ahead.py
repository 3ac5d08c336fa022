"""Which launches are compiled by threads before a step, and which run as ever."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread, get_ident
from typing import Any

import pytest
import torch

from evofeed.kernels import compiled_ahead
from evofeed.kernels.runtime import launching


class Kernel:
    """Notes who compiles it for what, and who launches it."""

    arg_names = ("x", "n", "BLOCK")
    __name__ = "kernel"

    def __init__(self, error: Exception | None = None) -> None:
        self.warmed: list[tuple[int, int]] = []
        self.launched: list[int] = []
        self._error = error

    def warmup(self, x: torch.Tensor, n: int, *, grid: tuple[int, ...], BLOCK: int) -> None:
        self.warmed.append((n, get_ident()))
        if self._error:
            raise self._error

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        def run(x: torch.Tensor, n: int, BLOCK: int) -> Any:
            self.launched.append(n)
            return self

        return run

    run = function = packed_metadata = None


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors pass for those of device 0."""
    monkeypatch.setattr(launching, "INTERPRETER", False)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)


def launch(kernel: Kernel, n: int) -> None:
    launching.launch(kernel, (1,), (torch.empty(64), n), {"BLOCK": 32})


def test_a_kernel_is_compiled_once_by_a_thread_for_all_sizes_that_triton_takes_as_one() -> None:
    kernel = Kernel()
    with compiled_ahead(torch.device("cuda", 0)):
        for n in (32, 48, 1, 17, 19, 2**40):
            launch(kernel, n)
    assert sorted(n for n, _ in kernel.warmed) == [1, 17, 32, 2**40]
    assert get_ident() not in [thread for _, thread in kernel.warmed]
    assert not kernel.launched
    launch(kernel, 32)
    assert kernel.launched == [32]


def test_another_thread_launches_as_ever() -> None:
    kernel = Kernel()
    with compiled_ahead(torch.device("cuda", 0)):
        thread = Thread(target=launch, args=(kernel, 32))
        thread.start()
        thread.join()
    assert kernel.launched == [32]
    assert not kernel.warmed


def test_what_cannot_be_compiled_is_said_by_the_launch_alone() -> None:
    kernel = Kernel(RuntimeError("out of registers"))
    with compiled_ahead(torch.device("cuda", 0)) as ahead:
        launch(kernel, 32)
    assert ahead.finish() == 0
    launch(kernel, 32)
    assert kernel.launched == [32]

"""Which launches are repeated as they were, go through Triton again, or are compiled before."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread, get_ident
from typing import Any

import pytest
import torch

from evofeed.kernels import compiled_ahead
from evofeed.kernels.runtime import launching


class Compiled:
    """What Triton hands back: `run` with the launcher's arguments."""

    function, packed_metadata = 7, (4, 1, 0)

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args
        self.runs: list[tuple[Any, ...]] = []

    def run(self, *arguments: Any) -> None:
        self.runs.append(arguments)


class Kernel:
    """A kernel of three arguments and a compile-time one; notes who compiles it for what."""

    __name__ = "kernel"
    arg_names = ("x", "y", "n", "BLOCK")

    def __init__(self, error: Exception | None = None) -> None:
        self.compiled: list[Compiled] = []
        self.warmed: list[tuple[int, int]] = []
        self._error = error

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Compiled]:
        def first(*args: Any, **meta: Any) -> Compiled:
            self.compiled.append(Compiled(args))
            return self.compiled[-1]

        return first

    def warmup(self, x: Any, y: Any, n: int, *, grid: tuple[int, ...], **meta: int) -> None:
        self.warmed.append((n, get_ident()))
        if self._error:
            raise self._error


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors pass for those of device 0."""
    monkeypatch.setattr(launching, "INTERPRETER", False)
    monkeypatch.setattr(launching, "_compiled", {})
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 99, raising=False)


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


def test_ever_new_sizes_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MOST", 10)
    kernel, x = Kernel(), torch.empty(64)
    for n in range(35):
        launching.launch(kernel, (1,), (x, x, n), {"BLOCK": 64})
    assert len(launching._compiled) <= 10


def launch(kernel: Kernel, n: int) -> None:
    launching.launch(kernel, (1,), (torch.empty(64), None, n), {"BLOCK": 32})


def test_a_kernel_is_compiled_once_by_a_thread_for_all_sizes_that_triton_takes_as_one() -> None:
    kernel = Kernel()
    with compiled_ahead(torch.device("cuda", 0)):
        for n in (32, 48, 1, 17, 19, 2**40):
            launch(kernel, n)
    assert sorted(n for n, _ in kernel.warmed) == [1, 17, 32, 2**40]
    assert get_ident() not in [thread for _, thread in kernel.warmed]
    assert not kernel.compiled
    launch(kernel, 32)
    assert [launched.args[-1] for launched in kernel.compiled] == [32]


def test_another_thread_launches_as_ever() -> None:
    kernel = Kernel()
    with compiled_ahead(torch.device("cuda", 0)):
        thread = Thread(target=launch, args=(kernel, 32))
        thread.start()
        thread.join()
    assert [launched.args[-1] for launched in kernel.compiled] == [32]
    assert not kernel.warmed


def test_what_cannot_be_compiled_is_said_by_the_launch_alone() -> None:
    kernel = Kernel(RuntimeError("out of registers"))
    with compiled_ahead(torch.device("cuda", 0)) as ahead:
        launch(kernel, 32)
    assert ahead.finish() == 0
    launch(kernel, 32)
    assert [launched.args[-1] for launched in kernel.compiled] == [32]

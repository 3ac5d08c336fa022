from __future__ import annotations

import pytest
import torch
from torch import Tensor

from evofeed.kernels import AddMany, record_graph
from evofeed.kernels.runtime import many_tensors
from evofeed.kernels.runtime.many_tensors import BLOCK, CopyMany

SIZES = (1, 16, 17, 128, BLOCK, BLOCK + 5, 3 * BLOCK)


def _places(device: str) -> tuple[Tensor, list[Tensor]]:
    starts = [0]
    for size in SIZES:
        starts.append(starts[-1] + -(-size // 128) * 128)
    buffer = torch.arange(starts[-1], dtype=torch.float32, device=device) / 7
    return buffer, [buffer[a : a + n] for a, n in zip(starts, SIZES, strict=False)]


def _gradients(device: str) -> list[Tensor | None]:
    torch.manual_seed(0)
    made: list[Tensor | None] = [torch.randn(size, device=device) for size in SIZES]
    made[1] = None
    made[2] = torch.randn(18, device=device)[1:]  # not at 16 bytes
    made[4] = torch.randn(64, 64, device=device).t()  # not contiguous
    made[6] = torch.randn(SIZES[6], device=device).bfloat16()
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("plain", [True, False])
def test_tensors_are_added_to_their_places(plain: bool, device: str) -> None:
    (buffer, views), gradients = _places(device), _gradients(device)
    expected, theirs = _places(device)
    for view, gradient in zip(theirs, gradients, strict=True):
        if gradient is not None:
            view += gradient.reshape(-1)
    AddMany(views, plain)(gradients)
    torch.testing.assert_close(buffer, expected, atol=0, rtol=0)


@pytest.mark.gpu
def test_weights_are_copied_in_another_type(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, views = _places(device)
    to = [torch.zeros(size, dtype=torch.float16, device=device) for size in SIZES]
    copy = CopyMany()
    monkeypatch.setattr(many_tensors, "copy_all", None)  # no way around the kernel
    for number in (1.0, 2.0):
        for view in views:
            view.copy_(torch.randn(view.shape) * number)
        copy(to, views)
        for half, view in zip(to, views, strict=True):
            torch.testing.assert_close(half, view.half(), atol=0, rtol=0)


def test_without_a_kernel_pytorch_copies() -> None:
    _, views = _places("cpu")
    to = [torch.zeros(size, dtype=torch.float16) for size in SIZES]
    CopyMany()(to, views)
    for half, view in zip(to, views, strict=True):
        torch.testing.assert_close(half, view.half(), atol=0, rtol=0)


@pytest.mark.gpu
def test_recorded_moves_keep_their_addresses(device: str) -> None:
    if device == "cpu":
        pytest.skip("records a CUDA graph")
    buffer, views = _places(device)
    before, add, copy = buffer.clone(), AddMany(views), CopyMany()
    source = [torch.zeros_like(view) for view in views]
    halves = [torch.zeros_like(view, dtype=torch.float16) for view in views]
    add(source)
    copy.prepare(halves, source)

    def moves() -> None:
        copy(halves, source)
        add([t * 2 for t in source])

    _, replay = record_graph(torch.device(device, 0), None, moves)
    copy(halves[:3], source[:3])  # other addresses, which a replay does not see
    for number in (1.0, 3.0):
        buffer.copy_(before)
        for t in source:
            t.fill_(number)
        add(source)
        replay()
        for view, old, half in zip(views, _places(device)[1], halves, strict=True):
            torch.testing.assert_close(view, old + 3 * number, atol=1e-4, rtol=1e-6)
            assert (half == number).all()

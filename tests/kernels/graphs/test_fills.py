"""Fills of a recording that become kernels: the same memory, in the same order."""

from __future__ import annotations

import ctypes

import pytest
import torch

from evofeed.kernels import record_graph
from evofeed.kernels.graphs import capture, fills


def _fill(value: int, size: int, width: int, height: int = 1, to: int = 1024) -> fills._Fill:
    return fills._Fill(to=to, pitch=0, value=value, size=size, width=width, height=height)


def test_a_word_is_made_of_elements_of_any_size() -> None:
    assert fills._word(_fill(0x12345678, 4, 1)) == 0x12345678
    assert fills._word(_fill(0x1234, 2, 2)) == 0x12341234
    assert fills._word(_fill(0xFFFFFF07, 1, 4)) == 0x07070707


def test_only_one_short_row_of_whole_words_becomes_a_kernel() -> None:
    assert fills._may_become_a_kernel(_fill(0, 1, 64))
    assert fills._may_become_a_kernel(_fill(0, 4, fills.MOST // 4))
    for other in (_fill(0, 4, fills.MOST // 4 + 1), _fill(0, 1, 63), _fill(0, 1, 64, to=1025),
                  _fill(0, 1, 64, height=2), _fill(0, 1, 0)):  # fmt: skip
        assert not fills._may_become_a_kernel(other)


def test_without_a_driver_a_graph_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> None:
        raise OSError("libcuda.so.1: no such file")

    monkeypatch.setattr(fills, "_driver", missing)
    assert fills.fill_by_kernels(0) == 0
    assert "fills of a CUDA graph stay: libcuda.so.1" in caplog.text


def _filled(x: torch.Tensor, how: str, value: int, count: int) -> None:
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call = getattr(fills._driver(), how)
    assert call(ctypes.c_uint64(x.data_ptr()), value, ctypes.c_size_t(count), stream) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_replay_fills_between_what_came_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts: list[int] = []

    def counted(graph: int) -> int:
        counts.append(fills.fill_by_kernels(graph))
        return counts[-1]

    monkeypatch.setattr(capture, "fill_by_kernels", counted)
    x, y = (torch.zeros(1000, dtype=torch.int32, device="cuda") for _ in range(2))

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(5)
        _filled(x, "cuMemsetD32Async", 7, 900)
        _filled(x[900:], "cuMemsetD8Async", 1, 200)
        z = x + y
        _filled(x, "cuMemsetD32Async", 3, 1000)
        return z, x * 2

    device = torch.device("cuda", torch.cuda.current_device())
    (z, twice), replay = record_graph(device, None, work)
    assert counts == [3]
    for added in (0, 4):
        y.fill_(added)
        x.fill_(100)
        replay()
        assert z[:900].eq(7 + added).all() and z[900:950].eq(0x01010101 + added).all()
        assert z[950:].eq(105 + added).all() and twice.eq(6).all()

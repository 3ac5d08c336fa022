"""Casts of weights of any size and address, equal to PyTorch's."""

from __future__ import annotations

import pytest
import torch

from evofeed.kernels.runtime import casts
from evofeed.kernels.runtime.casts import Casts
from evofeed.kernels.runtime.one_pass import OnePass
from evofeed.kernels.runtime.projection import pack


def test_all_are_cast_and_again_when_they_or_their_places_have_moved(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one: list[int] = []
    monkeypatch.setattr(
        casts,
        "copy_all",
        lambda to, source: one_by_one.append(len(to)) or torch._foreach_copy_(to, source),
    )
    sizes = [(3, 4), (2, 4096), (9000,), (5,), (4, 4)]
    source = [torch.randn(size, device=device) for size in sizes]
    source[-1] = source[-1].t()
    whole = torch.zeros(40_000, dtype=torch.float16, device=device)

    def places(start: int) -> list[torch.Tensor]:
        ends = [start + 8192 * n for n in (0, 1, 2, 4, 4)]
        ends[-1] += 8
        return [
            whole[at : at + t.numel()].view(t.shape) for at, t in zip(ends, source, strict=True)
        ]

    run = Casts()
    for start in (0, 0, 4, 2):
        to = places(start)
        whole.zero_()
        run.run(to, source)
        assert all(torch.equal(t, s.half()) for t, s in zip(to, source, strict=True))
        assert whole.count_nonzero() == sum(t.count_nonzero() for t in to)
        source[0].mul_(2)
    # five numbers and a transposed weight have no even pieces
    assert one_by_one == [2, 2, 2, 2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_pass_casts_its_weights_when_later_passes_have_more() -> None:
    first, second = (torch.nn.Parameter(torch.randn(256, 256, device="cuda")) for _ in range(2))
    one_pass = OnePass()
    for _ in range(2):
        with one_pass:
            pack([first], torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), one_pass:
        recorded = pack([first], torch.bfloat16).clone()
    for _ in range(2):
        with one_pass:
            pack([second], torch.bfloat16)
    others = [torch.full((1024,), 1 << 40, device="cuda") for _ in range(64)]  # in what was freed
    with torch.no_grad():
        first.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(recorded, first.bfloat16()) and len(others) == 64

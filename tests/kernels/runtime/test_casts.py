"""Weights of any size and place in another type, as PyTorch casts them."""

from __future__ import annotations

import pytest
import torch

from evofeed.kernels.runtime import casts
from evofeed.kernels.runtime.casts import Casts


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

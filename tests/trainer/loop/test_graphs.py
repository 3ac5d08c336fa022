"""Which batches are recorded; the recording itself needs a GPU (`test_loop_gpu.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from evofeed.trainer.run import graphs


class Counted:
    """Stands in for a CUDA recording: counts itself and its replays."""

    made: ClassVar[list[torch.Size]] = []
    replays = 0

    def __init__(self, forward: object, batch: dict[str, Tensor], pool: object) -> None:
        self.made.append(batch["x"].shape)

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        type(self).replays += 1
        between()
        return torch.zeros(1)


def test_each_shape_runs_once_eagerly_then_recorded_and_not_too_many_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "_Recording", Counted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    weight = torch.ones(1, requires_grad=True)
    eager: list[torch.Size] = []
    parts: list[str] = []

    def forward(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        eager.append(batch["x"].shape)
        return (weight * batch["x"]).sum(), torch.zeros(1)

    replay = graphs.Replay(forward)
    for length in [1, 2, 1, 1, 2, *range(3, 12), *range(3, 12)]:
        replay({"x": torch.ones(length)}, lambda: parts.append("backward"))
    assert len(Counted.made) == 8  # lengths 1 to 8; 9 to 11 stay eager
    assert len(eager) == 11 + 3
    assert len(parts) == 5 + 18
    assert weight.grad is not None

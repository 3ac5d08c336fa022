"""Which batches are recorded, and as what; recording itself needs a GPU: `test_loop_gpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from evofeed.trainer.run import graphs

WEIGHT = torch.ones(1, requires_grad=True)


class Counted:
    """Replaces a CUDA recording: notes what it was made for, and its replays."""

    made: ClassVar[list[torch.Size]] = []
    replays: ClassVar[list[int]] = []

    def __init__(
        self,
        forward: object,
        one_pass: object,
        backward: object,
        batch: Mapping[str, Tensor],
        *rest: object,
    ) -> None:
        self.made.append(batch["x"].shape)

    def __call__(self, batch: dict[str, Tensor], between: Callable[[], None]) -> Tensor:
        self.replays.append(len(batch["x"]))
        between()
        return torch.zeros(1)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_Recording", Counted)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    Counted.made.clear()
    Counted.replays.clear()


def forward(batch: dict[str, Tensor], previous: Any) -> tuple[Tensor, Tensor]:
    return (WEIGHT * batch["x"]).sum(), torch.ones(1)


def test_each_shape_runs_once_eagerly_then_recorded_and_not_too_many_are_kept() -> None:
    parts: list[str] = []
    replay = graphs.Replay(forward)
    for length in [1, 2, 1, 1, 2, *range(3, 12), *range(3, 12)]:
        replay({"x": torch.ones(length)}, lambda: parts.append("backward"))
    assert len(Counted.made) == 8  # lengths 1 to 8; 9 to 11 stay eager
    assert len(Counted.replays) == 3 + 6
    assert len(parts) == 5 + 18


def test_one_recording_serves_every_number_of_recycles() -> None:
    replay = graphs.Replay(forward, lambda batch, previous: (), frozenset({"x"}))
    for recycles in (2, 4, 1, 3):
        replay({"x": torch.ones(recycles, 5)}, lambda: None)
    assert Counted.made == [torch.Size([4, 5])]
    assert Counted.replays == [4, 1, 3]


def test_where_recording_fails_batches_run_eagerly_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*parts: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(graphs, "_Recording", fails)
    replay = graphs.Replay(forward)
    WEIGHT.grad = None
    for _ in range(4):
        assert replay({"x": torch.ones(3)}, lambda: None) == 1
    assert WEIGHT.grad is not None and WEIGHT.grad.item() == 12
    assert [record.getMessage() for record in caplog.records] == [
        "no CUDA graphs, steps run eagerly: operation not permitted when stream is capturing"
    ]


def test_passes_one_by_one_are_the_whole_forward() -> None:
    from tests.trainer.synthetic_batch import synthetic_batch

    from evofeed.trainer import AlphaFold, tiny

    torch.manual_seed(0)
    model = AlphaFold(tiny().model).eval()
    assert isinstance(model, graphs.Recycling)
    batch = synthetic_batch(
        num_res=10, num_seq=3, num_extra_seq=4, num_templates=1, no_recycling_iters=2
    )

    def cycle(r: int) -> dict[str, Tensor]:
        return {k: v[r : r + 1] if k in model.per_recycle else v for k, v in batch.items()}

    state = tuple(map(torch.zeros_like, model.recycle(cycle(0), None)))
    for r in range(2):
        state = model.recycle(cycle(r), state)
    by_pass, whole = model(cycle(2), state), model(batch)
    for name in ("pair", "final_atom_positions", "distogram_logits"):
        assert torch.equal(by_pass[name], whole[name]), name

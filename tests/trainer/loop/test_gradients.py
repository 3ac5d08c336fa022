"""The module where a pass stops being finite is named."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.trainer.run.gradients import first_nonfinite


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
        self.forgotten = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.trunk(batch["x"])
        return {"left": self.left(x), "right": self.right(x)}


BATCH = {"x": torch.ones(2, 3)}


def test_the_module_where_a_pass_stops_being_finite_is_named_first() -> None:
    model = TwoHeads()
    with first_nonfinite(model) as found:
        model(BATCH)
        assert found == []
        with torch.no_grad():
            model.trunk.bias[1] = float("inf")
        model(BATCH)
    assert found == ["trunk", "left", "right"]

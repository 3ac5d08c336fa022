"""The detector names what gets no gradient, and the loss term to blame."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.trainer.run.gradients import find_untouched, first_nonfinite, watch_gradients


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)
        self.forgotten = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        x = self.trunk(batch["x"])
        return {"left": self.left(x), "right": self.right(x)}


def _terms(outputs: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.sum() for name, value in outputs.items()}


BATCH = {"x": torch.ones(2, 3)}


def test_a_switched_off_term_is_named_with_the_parameters_it_takes_along() -> None:
    found = find_untouched(TwoHeads(), BATCH, _terms, {"left": 1.0, "right": 0.0})
    by_name = {entry.name: entry.terms for entry in found}
    assert by_name == {
        "right.weight": ("right",),
        "right.bias": ("right",),
        "forgotten.weight": (),
        "forgotten.bias": (),
    }
    reported = [str(entry) for entry in found]
    assert reported[0] == "right.weight: only right would train it, and does not count"
    assert reported[2] == "forgotten.weight: no loss term leads to it"


def test_a_term_of_weight_zero_that_is_in_the_sum_still_touches() -> None:
    model = TwoHeads()
    with watch_gradients(model) as waiting:
        outputs = model(BATCH)
        (outputs["left"].sum() + 0.0 * outputs["right"].sum()).backward()
    assert waiting == {"forgotten.weight", "forgotten.bias"}
    assert not model.right.weight.grad.any()


def test_the_module_where_a_pass_stops_being_finite_is_named_first() -> None:
    model = TwoHeads()
    with first_nonfinite(model) as found:
        model(BATCH)
        assert found == []
        with torch.no_grad():
            model.trunk.bias[1] = float("inf")
        model(BATCH)
    assert found == ["trunk", "left", "right"]

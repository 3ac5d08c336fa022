"""The two-layer perceptrons of the MSA and pair stacks (AF2 SI algorithms 9 and 15)."""

from __future__ import annotations

from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.primitives import LayerNorm, Linear


class _Transition(nn.Module):
    def __init__(self, c: int, n: int) -> None:
        super().__init__()
        self.layer_norm = LayerNorm(c)
        self.linear_1 = Linear(c, n * c, init="relu")
        self.relu = nn.ReLU()
        self.linear_2 = Linear(n * c, c, init="final")

    def forward(
        self, x: Float[Tensor, "*B c"], mask: Float[Tensor, "*B"] | None = None
    ) -> Float[Tensor, "*B c"]:
        """Update of `x`; zero where the mask is zero."""
        update: Tensor = self.linear_2(self.relu(self.linear_1(self.layer_norm(x))))
        return update if mask is None else update * mask.to(update.dtype)[..., None]


class MSATransition(_Transition):
    """Transition of the MSA representation, `n` times wider inside. Source: algorithm 9."""


class PairTransition(_Transition):
    """Transition of the pair representation, `n` times wider inside. Source: algorithm 15."""

"""`topk`: only the largest entries are sent, the others wait: Deep Gradient Compression.

Of every block of 65,536 neighbours, about a weight matrix, the largest few go as a bfloat16 and a
16-bit place. What waits is not the gradient but its momentum (momentum correction), and where an
entry is sent its momentum restarts (factor masking). Fewer and fewer entries are sent in the
warm-up: 1/4, 1/16, ... Clipping each rank's own gradient is `optim.clip: per_example`.

Source: Lin et al. 2018, algorithms 1 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from evofeed.trainer.gradients.exchange import Span, WithResidual, padded
from evofeed.trainer.gradients.hosts import Hosts

_BLOCK = 1 << 16


class Sparse(WithResidual):
    """Averages the largest entries; see the module."""

    def __init__(
        self,
        hosts: Hosts,
        spans: Iterable[Span],
        size: int,
        device: torch.device,
        *,
        density: float,
        momentum: float,
        warmup: int,
    ) -> None:
        """Binds it to a buffer.

        Args:
            hosts, spans, size, device: see `WithResidual`.
            density: share of the entries that is sent after the warm-up.
            momentum: of what waits; 0: the gradient itself waits, and none of it is ever lost.
            warmup: steps of the warm-up.
        """
        super().__init__(hosts, spans, size, device)
        self.density, self.momentum, self.warmup = density, momentum, warmup
        if momentum:
            self.kept["momentum"] = torch.zeros_like(self.kept["residual"])

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        length, block = part.numel(), min(part.numel(), _BLOCK)
        if "momentum" in kept:
            part = kept["momentum"].mul_(self.momentum).add_(part)
        owed = padded(kept["residual"].add_(part), block).view(-1, block)
        count = max(1, round(block * density_at(step, self.density, self.warmup)))
        places = owed.abs().topk(count, dim=1, sorted=False).indices
        largest = owed.gather(1, places)
        values = largest.to(torch.bfloat16)
        left = owed.scatter(1, places, largest - values.float())
        kept["residual"].copy_(left.view(-1)[:length])
        if "momentum" in kept:
            waits = torch.ones_like(owed).scatter_(1, places, 0.0)
            kept["momentum"].mul_(waits.view(-1)[:length])
        short = (places - _BLOCK // 2).to(torch.int16)
        coded = torch.stack([values.view(torch.int16), short]).view(torch.uint8)
        total = torch.zeros_like(owed)
        for one in self.between.gather(coded.view(-1)).view(torch.int16):  # host by host: same bits
            sent, at = one.view(2, *places.shape)
            at = at.long() + _BLOCK // 2
            total.scatter_(1, at, total.gather(1, at) + sent.view(torch.bfloat16).float())
        return total.view(-1)[:length] / self.between.size


def density_at(step: int, density: float, warmup: int) -> float:
    """Share of the entries that step number `step` sends: 1/4, 1/16, ... in the warm-up."""
    if step >= warmup:
        return density
    stages = max(1, math.ceil(-math.log(density, 4)) - 1)
    return max(density, float(4.0 ** -(1 + step * stages // warmup)))

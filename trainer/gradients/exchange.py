"""From every rank's gradient to their mean on every rank: what all modes share.

A flat gradient is cut, at parameters' starts, in as many parts as a host has ranks. Inside the
host each rank gets the mean of its part, exactly; between hosts the part is averaged as the mode
says; inside the host the parts are put together again. A mode that sends less than there is keeps
the rest and adds it next time. A step whose mean is not finite leaves what is kept as it was.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from evofeed.trainer.config import GradientConfig
from evofeed.trainer.gradients.hosts import Group

Span = tuple[int, int, torch.Size]
"""Start, length and shape of a parameter in the flat buffer."""


class Exchange:
    """Averages a flat gradient over all ranks, here exactly: `none` and `hierarchical`.

    Args:
        hosts: the ranks of this host, and the same ranks of all hosts.
        spans: the parameters in the buffer, in order.
        size: elements of the buffer.

    Attributes:
        inside: the ranks of this host, and the bytes sent among them.
        between: the same ranks of all hosts, likewise.
        cuts: where the host's parts of the buffer begin, and its end.
        part: this rank's part of the buffer.
        kept: what is remembered from step to step, by role: `residual` and `momentum` as long as
            this rank's part, in units of the host's mean gradient; `factors` of any length.
        left: what a run before this one had kept and this mode does not keep: added to the
            gradient of the next step. On one rank alone, times the number of ranks.
    """

    def __init__(
        self, config: GradientConfig, hosts: tuple[Group, Group], spans: Iterable[Span], size: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.spans = config, list(spans)
        self.inside, self.between = hosts
        self.cuts = _cuts([start for start, _, _ in self.spans], size, self.inside.size)
        self.part = slice(*self.cuts[self.inside.rank : self.inside.rank + 2])
        self.kept = self._empty(device)
        self.left: Tensor | None = None

    def mean(self, grad: Tensor, step: int) -> None:
        """Average this rank's flat gradient of update number `step` over all ranks, in place."""
        if self.left is not None:
            grad.add_(self.left.to(grad.device))
            self.left = None
        if self.inside.size == 1:
            self._between(grad, step)
            return
        places = list(zip(self.cuts, self.cuts[1:], strict=False))
        parts = grad.new_zeros(len(places), max(end - start for start, end in places))
        for row, (start, end) in zip(parts, places, strict=True):
            row[: end - start].copy_(grad[start:end])
        mine = self.inside.sum_of_part(parts).div_(self.inside.size)
        self._between(mine[: self.part.stop - self.part.start], step)
        for row, (start, end) in zip(self.inside.gather(mine), places, strict=True):
            grad[start:end].copy_(row[: end - start])

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        """`kept` before the first step."""
        return {}

    def _between(self, part: Tensor, step: int) -> None:
        """Average a part over the hosts, in place."""
        self.between.mean(part)


class WithResidual(Exchange):
    """What modes with a residual share: the sum of all that was sent and of the residual's mean
    over hosts is the sum of all mean gradients.
    """

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        return {"residual": torch.zeros(self.part.stop - self.part.start, device=device)}

    def _between(self, part: Tensor, step: int) -> None:
        kept = {name: value.clone() for name, value in self.kept.items()}
        sent = self._send(part, kept, step)
        bad = self.inside.sum((~torch.isfinite(sent).all()).float()[None])  # in any part
        for name, value in self.kept.items():
            value.copy_(torch.where(bad == 0, kept[name], value))
        part.copy_(sent)

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        """What all hosts apply; `kept` is changed to what this one still owes."""
        raise NotImplementedError


def _cuts(starts: list[int], size: int, parts: int) -> list[int]:
    """Ends of `parts` neighbouring parts of about one size, each beginning with a parameter."""
    wanted = [size * number // parts for number in range(1, parts)]
    return [0, *(min(starts, key=lambda at: abs(at - want)) for want in wanted), size]

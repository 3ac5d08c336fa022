"""From every rank's gradient to their mean on every rank: what all modes share.

A flat gradient is cut, at parameters' starts, in as many parts as a host has ranks. Inside the
host each rank gets the mean of its part, exactly; between hosts, where it talks to the ranks of the
same number, the part is averaged as the mode says; inside the host the parts are put together
again. A mode that sends less than there is keeps the rest and adds it next time. A step whose mean
is not finite leaves what is kept as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.config import GradientConfig
from evofeed.trainer.parallel.collectives import all_gather, reduce_scatter

Span = tuple[int, int, torch.Size]
"""Start, length and shape of a parameter in the flat buffer."""


@dataclass(slots=True)
class Group:
    """Ranks that talk to each other."""

    handle: Any = None
    """Their process group; None: that of all ranks."""
    rank: int = 0
    size: int = 1
    sent: int = 0
    """Bytes this rank has sent to the others, as a ring or pairwise exchange sends them."""

    def mean(self, x: Tensor) -> Tensor:
        """Mean of everybody's `x`, in place."""
        return self.sum(x).div_(self.size) if self.size > 1 else x

    def sum(self, x: Tensor) -> Tensor:
        """Sum of everybody's `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.handle)
            self.sent += 2 * (self.size - 1) * x.nbytes // self.size
        return x

    def sum_of_part(self, parts: Tensor) -> Tensor:
        """This rank's row of the sum of everybody's `[size, n]`: `[n]`."""
        mine = parts.new_empty(parts.shape[1:])
        reduce_scatter(mine, parts.view(-1), group=self.handle)
        self.sent += (self.size - 1) * mine.nbytes
        return mine

    def gather(self, mine: Tensor) -> Tensor:
        """Everybody's `[n]` as `[size, n]`."""
        if self.size == 1:
            return mine[None]
        parts = mine.new_empty(self.size, *mine.shape)
        all_gather(parts.view(-1), mine.contiguous(), group=self.handle)
        self.sent += (self.size - 1) * mine.nbytes
        return parts

    def swap(self, parts: Tensor) -> Tensor:
        """Row i of every rank for rank i, as rows by sender: `[size, n]`."""
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts.contiguous(), group=self.handle)
        self.sent += (self.size - 1) * parts[0].nbytes
        return received


def host_groups(rank: int, ranks: int, device: torch.device) -> tuple[Group, Group]:
    """The ranks of this one's host, and its like on all hosts; every rank must call it.

    Ranks come host by host, as torchrun numbers them. Where all are on one host each counts as a
    host of its own, so that every mode means something there too.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    number = int(os.environ.get("LOCAL_RANK", rank % local))
    if ranks % local or rank % local != number:
        raise TrainerError(
            f"rank {rank} of {ranks} is number {number} of {local} on its host: gradients that "
            "know of hosts need as many ranks on every host; start torchrun so, or use "
            "gradients.mode none"
        )
    if local in (1, ranks):
        return Group(), Group(None, rank, ranks)
    from torch.distributed.device_mesh import init_device_mesh

    names = ("host", "local")
    mesh = init_device_mesh(device.type, (ranks // local, local), mesh_dim_names=names)
    return (
        Group(mesh["local"].get_group(), number, local),
        Group(mesh["host"].get_group(), rank // local, ranks // local),
    )


class Exchange:
    """Averages a flat gradient over all ranks, here exactly: `none` and `hierarchical`.

    Attributes:
        inside: the ranks of this host.
        between: the same ranks of all hosts.
        cuts: where the host's parts of the buffer begin, and its end.
        part: this rank's part of the buffer.
        kept: what is remembered from step to step, by role: `residual` and `momentum` as long as
            this rank's part, in units of the host's mean gradient; `factors` of any length.
        left: what a run before this one had kept and this mode does not keep: added to every rank's
            gradient of the next step.
    """

    def __init__(
        self, config: GradientConfig, hosts: tuple[Group, Group], spans: Iterable[Span], size: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.spans = config, list(spans)
        self.inside, self.between = hosts
        starts, parts = [start for start, _, _ in self.spans], self.inside.size
        wanted = [size * number // parts for number in range(1, parts)]
        self.cuts = [0, *(min(starts, key=lambda at: abs(at - want)) for want in wanted), size]
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

    def collect(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Who keeps how much, JSON-ready, and all of it by role and rank, on the CPU: right on the
        first rank alone; every rank must call it."""
        mine = {role: kept.to("cpu", copy=True) for role, kept in self.kept.items()}
        everybody = [mine] * (self.inside.size * self.between.size)
        if mine:
            dist.gather_object(mine, everybody if self._rank == 0 else None)
        lengths = [{role: len(value) for role, value in one.items()} for one in everybody]
        kept = {f"{r}.{n}": value for n, one in enumerate(everybody) for r, value in one.items()}
        return {"cuts": self.cuts, "lengths": lengths}, kept

    def restore(self, before: Mapping[str, Any], saved: Mapping[str, Tensor]) -> None:
        """Take up what a run before this one kept.

        On as many hosts of as many ranks every rank gets back exactly what it had. Otherwise each
        host gets the mean over the old hosts: the mean that is still to be applied stays the same.
        `before` says who kept how much, as `collect` does.
        """
        cuts, ranks = before["cuts"], len(before["lengths"])
        alike = cuts == self.cuts and ranks == self.inside.size * self.between.size

        def mean(role: str) -> Tensor:
            parts, locals_ = [saved[f"{role}.{rank}"] for rank in range(ranks)], len(cuts) - 1
            hosts = [torch.cat(parts[at : at + locals_]) for at in range(0, ranks, locals_)]
            return torch.stack(hosts).mean(0)

        for role, kept in self.kept.items():
            own = saved.get(f"{role}.{self._rank}")
            if alike and own is not None and len(own) == len(kept):
                kept.copy_(own)
            elif role != "factors" and f"{role}.0" in saved:  # those of other matrices start again
                kept.copy_(mean(role)[self.part])
        if not self.kept:
            self.left = mean("residual")

    @property
    def _rank(self) -> int:
        return self.between.rank * self.inside.size + self.inside.rank

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        """`kept` before the first step."""
        return {}

    def _between(self, part: Tensor, step: int) -> None:
        """Average a part over the hosts, in place."""
        self.between.mean(part)

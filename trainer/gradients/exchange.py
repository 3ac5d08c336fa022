"""Averaging of gradients over ranks: the steps that all modes share.

A flat gradient is cut, at parameters' starts, into as many parts as a host has ranks. Inside the
host a reduce-scatter gives each rank the exact mean of its part; between hosts, among the ranks of
the same local number, the mode averages the part; inside the host an all-gather joins the parts
again. A mode that compresses keeps the residual and adds it at the next step. A step whose mean is
not finite does not change that state.
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
    """Ranks that communicate with each other."""

    handle: Any = None
    """Their process group; None: the default group of all ranks."""
    rank: int = 0
    size: int = 1
    bytes_sent: int = 0
    """Bytes this rank has sent to the others, counted as for a ring or a pairwise exchange."""

    def mean(self, x: Tensor) -> Tensor:
        """Mean of all ranks' `x`, in place."""
        return self.sum(x).div_(self.size) if self.size > 1 else x

    def sum(self, x: Tensor) -> Tensor:
        """Sum of all ranks' `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.handle)
            self.bytes_sent += 2 * (self.size - 1) * x.nbytes // self.size
        return x

    def sum_of_part(self, parts: Tensor) -> Tensor:
        """This rank's row, `[n]`, of the sum of all ranks' `[size, n]`: a reduce-scatter."""
        mine = parts.new_empty(parts.shape[1:])
        reduce_scatter(mine, parts.view(-1), group=self.handle)
        self.bytes_sent += (self.size - 1) * mine.nbytes
        return mine

    def gather(self, mine: Tensor) -> Tensor:
        """All ranks' `[n]` as `[size, n]`: an all-gather."""
        if self.size == 1:
            return mine[None]
        parts = mine.new_empty(self.size, *mine.shape)
        all_gather(parts.view(-1), mine.contiguous(), group=self.handle)
        self.bytes_sent += (self.size - 1) * mine.nbytes
        return parts

    def swap(self, parts: Tensor) -> Tensor:
        """Row i of every rank to rank i, as rows by sender, `[size, n]`: an all-to-all."""
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts.contiguous(), group=self.handle)
        self.bytes_sent += (self.size - 1) * parts[0].nbytes
        return received


def host_groups(rank: int, ranks: int, device: torch.device) -> tuple[Group, Group]:
    """Groups of the ranks on this host, and of those with this local number on all hosts.

    Every rank must call it. Ranks are numbered host by host, as torchrun does. Where all are on one
    host, each rank counts as a separate host, so that every mode compresses there too.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    number = int(os.environ.get("LOCAL_RANK", rank % local))
    if ranks % local or rank % local != number:
        raise TrainerError(
            f"rank {rank} of {ranks} is number {number} of {local} on its host: this "
            "gradients.mode needs the same number of ranks on every host; start torchrun with the "
            "same --nproc-per-node everywhere, or use gradients.mode none"
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
    """Averages a flat gradient over all ranks; this class exactly: `none` and `hierarchical`.

    Attributes:
        inside: the ranks of this host.
        between: the ranks with this local number on all hosts.
        cuts: offsets of the host's parts of the buffer, and the buffer's length.
        part: this rank's part of the buffer.
        state: tensors carried from step to step, by role: `residual` and `momentum` as long as
            this rank's part, in units of the host's mean gradient; `factors` of any length.
        leftover: residual of an earlier run that this mode cannot carry: added to every rank's
            gradient of the next step.
    """

    def __init__(
        self, config: GradientConfig, hosts: tuple[Group, Group], spans: Iterable[Span], size: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.spans = config, list(spans)
        self.inside, self.between = hosts
        starts, parts = [start for start, _, _ in self.spans], self.inside.size
        even = [size * number // parts for number in range(1, parts)]
        self.cuts = [0, *(min(starts, key=lambda start: abs(start - cut)) for cut in even), size]
        self.part = slice(*self.cuts[self.inside.rank : self.inside.rank + 2])
        self.state = self._empty(device)
        self.leftover: Tensor | None = None

    def mean(self, grad: Tensor, step: int) -> None:
        """Average the flat gradient of update number `step` over all ranks, in place."""
        if self.leftover is not None:
            grad.add_(self.leftover.to(grad.device))
            self.leftover = None
        if self.inside.size == 1:
            self._between(grad, step)
            return
        bounds = list(zip(self.cuts, self.cuts[1:], strict=False))
        parts = grad.new_zeros(len(bounds), max(end - start for start, end in bounds))
        for row, (start, end) in zip(parts, bounds, strict=True):
            row[: end - start].copy_(grad[start:end])
        mine = self.inside.sum_of_part(parts).div_(self.inside.size)
        self._between(mine[: self.part.stop - self.part.start], step)
        for row, (start, end) in zip(self.inside.gather(mine), bounds, strict=True):
            grad[start:end].copy_(row[: end - start])

    def collect(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Layout of the state, JSON-ready, and the state of all ranks as `ROLE.RANK`, on the CPU.

        Complete on the first rank only; every rank must call it.
        """
        local = {role: tensor.to("cpu", copy=True) for role, tensor in self.state.items()}
        by_rank = [local] * (self.inside.size * self.between.size)
        if local:
            dist.gather_object(local, by_rank if self._rank == 0 else None)
        lengths = [{role: len(value) for role, value in state.items()} for state in by_rank]
        tensors = {f"{role}.{n}": x for n, state in enumerate(by_rank) for role, x in state.items()}
        return {"cuts": self.cuts, "lengths": lengths}, tensors

    def restore(self, layout: Mapping[str, Any], saved: Mapping[str, Tensor]) -> None:
        """Load the state of an earlier run, with the layout that `collect` gave.

        With the same hosts and ranks every rank gets its own state back exactly. Otherwise each
        host gets the mean over the old hosts: the mean still to be applied stays the same.
        """
        cuts, ranks = layout["cuts"], len(layout["lengths"])
        same_layout = cuts == self.cuts and ranks == self.inside.size * self.between.size

        def mean(role: str) -> Tensor:
            parts, locals_ = [saved[f"{role}.{rank}"] for rank in range(ranks)], len(cuts) - 1
            hosts = [torch.cat(parts[rank : rank + locals_]) for rank in range(0, ranks, locals_)]
            return torch.stack(hosts).mean(0)

        for role, tensor in self.state.items():
            local = saved.get(f"{role}.{self._rank}")
            if same_layout and local is not None and len(local) == len(tensor):
                tensor.copy_(local)
            elif role != "factors" and f"{role}.0" in saved:  # other matrices' factors start again
                tensor.copy_(mean(role)[self.part])
        if not self.state:
            self.leftover = mean("residual")

    @property
    def _rank(self) -> int:
        return self.between.rank * self.inside.size + self.inside.rank

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        """`state` before the first step."""
        return {}

    def _between(self, part: Tensor, step: int) -> None:
        """Average a part over the hosts, in place."""
        self.between.mean(part)

"""Which ranks share a host, and the collectives inside one and between them.

Every rank of a host has a part of the gradient: between hosts it talks to the ranks of
the same number elsewhere. Ranks come host by host, as torchrun numbers them. Where all are on
one host each counts as a host of its own, so that every mode means something there too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.trainer.parallel.collectives import all_gather, reduce_scatter


@dataclass(slots=True)
class Group:
    """Ranks that talk to each other.

    Attributes:
        handle: their process group; None: that of all ranks.
        sent: bytes this rank has sent to the others, as a ring or pairwise exchange sends them.
        after: called with the bytes of every collective at its end; a benchmark slows a link so.
    """

    handle: Any = None
    rank: int = 0
    size: int = 1
    sent: int = 0
    after: Callable[[int], None] | None = None

    def mean(self, x: Tensor) -> Tensor:
        """Mean of everybody's `x`, in place."""
        return self.sum(x).div_(self.size) if self.size > 1 else x

    def sum(self, x: Tensor) -> Tensor:
        """Sum of everybody's `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.handle)
            self._count(2 * (self.size - 1) * x.nbytes // self.size)
        return x

    def sum_of_part(self, parts: Tensor) -> Tensor:
        """This rank's row of the sum of everybody's `[size, n]`: `[n]`."""
        mine = parts.new_empty(parts.shape[1:])
        reduce_scatter(mine, parts.view(-1), group=self.handle)
        self._count((self.size - 1) * mine.nbytes)
        return mine

    def gather(self, mine: Tensor) -> Tensor:
        """Everybody's `[n]` as `[size, n]`."""
        if self.size == 1:
            return mine[None]
        parts = mine.new_empty(self.size, *mine.shape)
        all_gather(parts.view(-1), mine.contiguous(), group=self.handle)
        self._count((self.size - 1) * mine.nbytes)
        return parts

    def swap(self, parts: Tensor) -> Tensor:
        """Row i of every rank for rank i, as rows by sender: `[size, n]`."""
        if self.size == 1:
            return parts
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts.contiguous(), group=self.handle)
        self._count((self.size - 1) * parts[0].nbytes)
        return received

    def _count(self, nbytes: int) -> None:
        self.sent += nbytes
        if self.after:
            self.after(nbytes)


def host_groups(rank: int, ranks: int, device: torch.device) -> tuple[Group, Group]:
    """The ranks of this one's host, and its like on all hosts; every rank must call it.

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

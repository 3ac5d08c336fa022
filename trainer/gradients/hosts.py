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

# Torch 2.13 has new names for these two, and warns of the old ones.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(slots=True)
class Group:
    """Ranks that talk to each other.

    Attributes:
        handle: their process group; None: that of all ranks.
        rank: this one's number among them.
        size: how many they are.
        sent: bytes this rank has sent to the others, as a ring or pairwise exchange sends them.
        after: called with the bytes of every collective at its end; a benchmark slows a link so.
        averages: whether NCCL's own mean is the sum over the ranks; None: not known yet.
    """

    handle: Any = None
    rank: int = 0
    size: int = 1
    sent: int = 0
    after: Callable[[int], None] | None = None
    averages: bool | None = None

    def mean(self, x: Tensor) -> Tensor:
        """Mean of everybody's `x`, in place; the ranks give as many numbers in every call.

        NCCL can halve as it sums, which saves a pass over `x`; it does once bits were the same.
        """
        if self.size == 1:
            return x
        if self.averages is None and not self._may_average():
            self.averages = False
        if self.averages:
            dist.all_reduce(x, dist.ReduceOp.AVG, group=self.handle)
            self._count(2 * (self.size - 1) * x.nbytes // self.size)
            return x
        own = x.clone() if self.averages is None else None
        self.sum(x).div_(self.size)
        if own is not None:
            dist.all_reduce(own, dist.ReduceOp.AVG, group=self.handle)
            self.averages = self._alike(own, x)
        return x

    def _may_average(self) -> bool:
        """A third that is rounded before it is added is not a third of the sum."""
        return dist.get_backend(self.handle) == "nccl" and self.size & (self.size - 1) == 0

    def _alike(self, own: Tensor, mean: Tensor) -> bool | None:
        """Whether two means are equal on every rank; None if they are not finite."""
        found = torch.stack([mean.isfinite().all(), (own == mean).all()]).float()
        dist.all_reduce(found, dist.ReduceOp.MIN, group=self.handle)
        finite, equal = found.tolist()
        return bool(equal) if finite else None

    def sum(self, x: Tensor) -> Tensor:
        """Sum of everybody's `x`, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.handle)
            self._count(2 * (self.size - 1) * x.nbytes // self.size)
        return x

    def sum_of_part(self, parts: Tensor) -> Tensor:
        """This rank's row of the sum of everybody's `[size, n]`: `[n]`."""
        mine = parts.new_empty(parts.shape[1:])
        _reduce_scatter(mine, parts.view(-1), group=self.handle)
        self._count((self.size - 1) * mine.nbytes)
        return mine

    def gather(self, mine: Tensor) -> Tensor:
        """Everybody's `[n]` as `[size, n]`."""
        if self.size == 1:
            return mine[None]
        parts = mine.new_empty(self.size, *mine.shape)
        _all_gather(parts.view(-1), mine.contiguous(), group=self.handle)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """A rank's place: `inside` are the ranks of its host, `between` its like on all hosts."""

    inside: Group
    between: Group

    @classmethod
    def of(cls, rank: int, ranks: int, device: torch.device) -> Hosts:
        """This rank's place; every rank must call it, and the process group of all be there.

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
            return cls(inside=Group(), between=Group(None, rank, ranks))
        from torch.distributed.device_mesh import init_device_mesh

        names = ("host", "local")
        mesh = init_device_mesh(device.type, (ranks // local, local), mesh_dim_names=names)
        return cls(
            inside=Group(mesh["local"].get_group(), number, local),
            between=Group(mesh["host"].get_group(), rank // local, ranks // local),
        )

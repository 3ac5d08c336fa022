"""The ranks that share one sample, and the sharding of a tensor's axis over them.

Ranks form a mesh of `data` x `axial`: consecutive ranks share a sample, so that they are on one
host. An axis of N positions is cut into contiguous parts that differ by at most one in length;
with fewer positions than ranks the last parts are empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.kernels import PeerMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Ranks that hold parts of the same sample.

    GPUs of one host exchange through `memory`. With `in_place` the pair representation is
    overwritten: the caller does not read the old one, and there is no gradient.
    """

    group: Any
    rank: int
    size: int
    memory: PeerMemory | None = None
    in_place: bool = False

    def lengths(self, length: int) -> list[int]:
        """Length of every rank's part of an axis."""
        least, remainder = divmod(length, self.size)
        return [least + (rank < remainder) for rank in range(self.size)]

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that every rank holds in full: a view."""
        first, last = self.span(x.shape[dim])
        return x.narrow(dim, first, last - first)

    def span(self, length: int) -> tuple[int, int]:
        """Start and end (exclusive) of this rank's part of an axis."""
        lengths = self.lengths(length)
        first = sum(lengths[: self.rank])
        return first, first + lengths[self.rank]

    def all_nonempty(self, length: int) -> bool:
        """True if every rank has a position of an axis of this length."""
        return length >= self.size

    def memory_for(self, x: Tensor, split: int, join: int, length: int) -> PeerMemory | None:
        """The memory, if it has room for what a rank receives at most in such an exchange.

        A sum cuts and joins one axis: a rank receives parts from all ranks.
        """
        if self.memory is None:
            return None
        others = math.prod(n for d, n in enumerate(x.shape, -x.dim()) if d not in (split, join))
        parts = self.size if split == join else self.lengths(x.shape[split])[0]
        numel = others * parts * (self.lengths(length)[0] if split == join else length)
        return self.memory if self.memory.fits(x.dtype, numel) else None


def axial_group(ranks: int, axial: int, device: torch.device) -> Axis:
    """This process's axis in the mesh (ranks / axial) x axial.

    Every rank must call it after `init_process_group`; `axial` must divide the number of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    shape, names = (ranks // axial, axial), ("data", "axial")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)["axial"]
    group = mesh.get_group()
    memory = PeerMemory.of_group(group, device)
    return Axis(group=group, rank=mesh.get_local_rank(), size=axial, memory=memory)


def check_divides(ranks: int, axial: int) -> None:
    """Raises TrainerError unless `axial` divides the number of ranks."""
    if ranks % axial:
        fitting = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise TrainerError(
            f"axial is {axial}, which does not divide {ranks} rank{'s' * (ranks > 1)}: use one of "
            f"{', '.join(fitting)}, or start torchrun with a multiple of {axial} ranks"
        )

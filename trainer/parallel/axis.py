"""The ranks that share one sample, and how an axis of a tensor is cut among them.

Ranks form a mesh of `data` x `axial`: neighbours in rank share a sample, so that they sit in
one host. An axis of N positions is cut into neighbouring parts that differ by at most one in
length; with fewer positions than ranks the last parts are empty.
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

    GPUs of one host exchange through `memory`. With `in_place` parts of the pairs are written over:
    nobody else reads them, and there is no gradient.
    """

    group: Any
    rank: int
    size: int
    memory: PeerMemory | None = None
    in_place: bool = False

    def lengths(self, whole: int) -> list[int]:
        """Length of every rank's part of an axis."""
        least, more = divmod(whole, self.size)
        return [least + (rank < more) for rank in range(self.size)]

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that every rank holds whole: a view."""
        first, last = self.span(x.shape[dim])
        return x.narrow(dim, first, last - first)

    def span(self, whole: int) -> tuple[int, int]:
        """First and behind the last position of this rank's part of an axis."""
        lengths = self.lengths(whole)
        first = sum(lengths[: self.rank])
        return first, first + lengths[self.rank]

    def all_have(self, whole: int) -> bool:
        """Whether no part of such an axis is empty."""
        return whole >= self.size

    def memory_for(self, x: Tensor, split: int, join: int, length: int) -> PeerMemory | None:
        """The memory, if it has room for the most numbers of such an exchange that a rank receives.

        A sum cuts and joins one axis: the parts of all ranks count.
        """
        if self.memory is None:
            return None
        others = math.prod(n for d, n in enumerate(x.shape, -x.dim()) if d not in (split, join))
        here = self.size if split == join else self.lengths(x.shape[split])[0]
        most = others * here * (self.lengths(length)[0] if split == join else length)
        return self.memory if self.memory.fits(x.dtype, most) else None


def axial_group(ranks: int, axial: int, device: torch.device) -> Axis:
    """This process's place along `axial` of the mesh (ranks / axial) x axial.

    Every rank must call it; the process group of all must be there, and `axial` divide the ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    shape, names = (ranks // axial, axial), ("data", "axial")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)["axial"]
    group = mesh.get_group()
    memory = PeerMemory.of_group(group, device)
    return Axis(group=group, rank=mesh.get_local_rank(), size=axial, memory=memory)


def check_divides(ranks: int, axial: int) -> None:
    """Whether so many ranks can stand in groups of `axial` (raises TrainerError: they cannot)."""
    if ranks % axial:
        fitting = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise TrainerError(
            f"axial is {axial}, which does not divide {ranks} rank{'s' * (ranks > 1)}: use one of "
            f"{', '.join(fitting)}, or start torchrun with a multiple of {axial} ranks"
        )

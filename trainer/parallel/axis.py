"""The ranks that share one sample, and how an axis of a tensor is cut among them.

Ranks form a mesh of `data` x `axial`: neighbours in rank share a sample, so that they sit in
one host. An axis of N positions is cut into neighbouring parts that differ by at most one in
length; with fewer positions than ranks the last parts are empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.errors import TrainerError
from evofeed.kernels import PeerMemory

__all__ = ["Axis", "axial_group", "check_divides"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Ranks that hold parts of the same sample.

    Attributes:
        group: their process group.
        rank: number of this one among them.
        size: how many they are.
        memory: what they exchange through if they are GPUs of one host.
    """

    group: Any
    rank: int
    size: int
    memory: PeerMemory | None = None

    def lengths(self, whole: int) -> list[int]:
        """Length of every rank's part of an axis."""
        least, more = divmod(whole, self.size)
        return [least + (rank < more) for rank in range(self.size)]

    def part(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of a tensor that every rank holds whole: a view."""
        lengths = self.lengths(x.shape[dim])
        return x.narrow(dim, sum(lengths[: self.rank]), lengths[self.rank])

    def all_have(self, whole: int) -> bool:
        """Whether no part of such an axis is empty."""
        return whole >= self.size

    def memory_for(self, x: Tensor, most: int) -> PeerMemory | None:
        """The memory, if so many numbers of x's type fit, the most that any of the ranks sends."""
        fits = self.memory is not None and self.memory.fits(x.dtype, most)
        return self.memory if fits else None


def axial_group(ranks: int, axial: int, device: torch.device) -> Axis:
    """This process's place along `axial` of the mesh (ranks / axial) x axial.

    Every rank must call it; the process group of all must be there.

    Raises:
        TrainerError: `axial` does not divide the ranks.
    """
    check_divides(ranks, axial)
    from torch.distributed.device_mesh import init_device_mesh

    shape, names = (ranks // axial, axial), ("data", "axial")
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)["axial"]
    group = mesh.get_group()
    memory = PeerMemory.of_group(group, device)
    return Axis(group=group, rank=mesh.get_local_rank(), size=axial, memory=memory)


def check_divides(ranks: int, axial: int) -> None:
    """Whether so many ranks can stand in groups of `axial`.

    Raises:
        TrainerError: they cannot.
    """
    if ranks % axial:
        fitting = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
        raise TrainerError(
            f"axial is {axial}, which does not divide {ranks} rank{'s' * (ranks > 1)}: use one of "
            f"{', '.join(fitting)}, or start torchrun with a multiple of {axial} ranks"
        )

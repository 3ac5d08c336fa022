"""The ranks that share one sample, and how an axis of a tensor is cut among them.

Ranks form a mesh of `data` x `axial`: neighbours in rank share a sample, so that they sit in
one host. An axis of N positions is cut into neighbouring parts that differ by at most one in
length; with fewer positions than ranks the last parts are empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evofeed.base.errors import TrainerError
from evofeed.kernels import PeerMemory


class Beside:
    """Exchanges that go on while this GPU computes, on a stream and through memory of their own.

    Args:
        stream: which one; None: at once, in line.
    """

    def __init__(self, memory: PeerMemory, stream: torch.cuda.Stream | None) -> None:
        self.memory, self._stream = memory, stream
        self._sent: list[Tensor] = []

    def exchange(self, x: Tensor, split: int, join: int, length: int) -> Tensor:
        """As `PeerMemory.exchange`: may be read once it has `arrived`."""
        if self._stream is None:
            at_once: Tensor = self.memory.exchange(x, split, join, length)
            return at_once
        self._stream.wait_stream(torch.cuda.current_stream())
        self._sent.append(x)  # its memory may not be used again before
        with torch.cuda.stream(self._stream):
            sent: Tensor = self.memory.exchange(x, split, join, length)
        return sent

    def takes(self, x: Tensor, most: int) -> bool:
        """Whether such a tensor goes beside: not in a CUDA graph, where it gains nothing.

        Its programs hold registers that kernels of a program a multiprocessor wait for.

        Args:
            most: numbers that any rank receives.
        """
        recorded = x.is_cuda and torch.cuda.is_current_stream_capturing()
        return self.memory.fits(x.dtype, most) and not recorded

    def arrived(self) -> None:
        """Lets the current stream wait for all that was sent."""
        if self._stream is not None and self._sent:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._sent.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Ranks that hold parts of the same sample.

    Attributes:
        group: their process group.
        memory: what they exchange through if they are GPUs of one host.
        beside: and what for exchanges that other work goes on beside.
        in_place: whether parts of the pairs are written over: nobody else reads them, and there
            is no gradient.
    """

    group: Any
    rank: int
    size: int
    memory: PeerMemory | None = None
    beside: Beside | None = None
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

    def memory_for(self, x: Tensor, most: int) -> PeerMemory | None:
        """The memory, if so many numbers of x's type fit, the most that any rank receives."""
        memory = self.memory
        return memory if memory is not None and memory.fits(x.dtype, most) else None

    def most(self, shape: Sequence[int], split: int, join: int, length: int) -> int:
        """The most numbers that any rank receives when tensors of such a shape are exchanged.

        Of a sum, which cuts and joins one axis too, the parts of all ranks.
        """
        others = math.prod(n for d, n in enumerate(shape, -len(shape)) if d not in (split, join))
        if split == join:
            return others * self.size * self.lengths(length)[0]
        return others * self.lengths(shape[split])[0] * length


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
    more = None if memory is None else PeerMemory.of_group(group, device)
    beside = None if more is None else Beside(more, torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    return Axis(
        group=group, rank=mesh.get_local_rank(), size=axial, memory=memory, beside=beside
    )  # fmt: skip


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

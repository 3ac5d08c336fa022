"""Exchanges between the GPUs of a host through each other's memory: one kernel each, no copies.

A collective of NCCL costs 10 us before its first byte, wants its parts packed and leaves them to be
put together. Here one kernel reads what it needs from where it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import INTERPRETER
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.peer_kernel import MOST_PEERS, peer_exchange_kernel
from evofeed.kernels.runtime.private_apis import peer_buffers

SLOT = 128 << 20  # bytes of a slot, of which there are two: 5,120 sequences of 384 residues fit
PROGRAMS = 2 if INTERPRETER else 128  # all must run at once: fewer than any GPU of a host has SMs
REGISTERS = 128  # of a thread: two exchanges fit a multiprocessor and can't keep each other out
BLOCK = 1024  # groups of 16 bytes that a program has on their way
_FLAGS = 4 * MOST_PEERS * PROGRAMS


class PeerMemory:
    """Memory of every GPU of a group, readable and writable by all of them.

    All must call the same methods in the same order, on one stream each. Tensors are contiguous;
    axes are counted from the end; parts of an axis are neighbours that differ by at most
    one in length, the longer ones first.

    Args:
        buffers: one of bytes for every rank, its own among them, all zero.
        rank: of this one.
    """

    def __init__(self, buffers: Sequence[Tensor], rank: int) -> None:
        self._rank, self._size = rank, len(buffers)
        self._flags = [buffer[:_FLAGS].view(torch.int32) for buffer in buffers]
        self._slots = [buffer[_FLAGS:] for buffer in buffers]
        self._slot = self._slots[0].numel() // 2
        self._count = torch.zeros(PROGRAMS, dtype=torch.int32, device=buffers[0].device)
        self._typed: dict[torch.dtype, list[Tensor | None]] = {}

    @classmethod
    def of_group(cls, group: Any, device: torch.device, slot: int = SLOT) -> PeerMemory | None:
        """That of a process group; None where GPUs cannot read each other's memory.

        Every rank of the group must call it.
        """
        buffers = peer_buffers(group, device, nbytes(slot), MOST_PEERS)
        return None if buffers is None else cls(buffers, torch.distributed.get_rank(group))

    def fits(self, dtype: torch.dtype, numel: int) -> bool:
        """Whether so many numbers can be sent at once; they are the most that any rank receives."""
        return dtype.is_floating_point and numel * dtype.itemsize <= self._slot

    def exchange(self, x: Tensor, split: int, join: int, length: int) -> Tensor:
        """A part along `split` of what was a part along `join`, whose whole has this length."""
        axes = {split % x.dim(), join % x.dim()}
        others = math.prod(n for dim, n in enumerate(x.shape) if dim not in axes)
        shape = list(x.shape)
        shape[split], shape[join] = self._length(shape[split]), length
        out = x.new_empty(shape)
        behind = math.prod(x.shape[max(axes) + 1 :])
        around = *_around(x.shape, split), *_around(shape, join)
        self._run("exchange", x, out, (*around, others), behind)
        return out

    def gather(self, x: Tensor, dim: int, length: int, own: bool = True) -> Tensor:
        """The whole from everybody's part; where not `own`, its own part is left unwritten."""
        shape = list(x.shape)
        shape[dim] = length
        out = x.new_empty(shape)
        around = _around(shape, dim)
        self._run("gather", x, out, (1, x.numel(), 1, *around, 0), around[2], own)
        return out

    def reduce(self, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        """This rank's part of the sum of everybody's x; added in float32, or in float64."""
        shape = list(x.shape)
        shape[dim] = self._length(shape[dim])
        out = x.new_empty(shape) if out is None else out
        around = _around(x.shape, dim)
        self._run("reduce", x, out, (*around, 1, 1, 1, 0), around[2])
        return out

    def _length(self, whole: int) -> int:
        least, more = divmod(whole, self._size)
        return least + (self._rank < more)

    def _run(
        self, how: str, x: Tensor, out: Tensor, sizes: tuple[int, ...], behind: int,
        own: bool = True,
    ) -> None:  # fmt: skip
        """`behind` whole numbers lie together, on every rank: so wide may an access be."""
        vec = max(1, 16 // x.element_size())
        vec = 1 if behind % vec else vec
        slots = self._of_type(x.dtype)
        spare = [None] * (MOST_PEERS - self._size)
        launch(
            peer_exchange_kernel, (PROGRAMS,),
            (x, out, self._count, *slots, *spare, *self._flags, *spare, *sizes,
             self._slot // x.element_size()),
            {"RANK": self._rank, "SIZE": self._size, "HOW": how, "OWN": own,
             "VEC": vec, "BLOCK": BLOCK, "PRECISE": x.dtype is torch.float64, "num_warps": 8,
             **({} if INTERPRETER else {"maxnreg": REGISTERS})},
        )  # fmt: skip

    def _of_type(self, dtype: torch.dtype) -> list[Tensor | None]:
        if dtype not in self._typed:
            self._typed[dtype] = [slots.view(dtype) for slots in self._slots]
        return self._typed[dtype]


def nbytes(slot: int) -> int:
    """Of the buffer of one rank."""
    return _FLAGS + 2 * slot


def _around(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """Numbers before an axis, along it, and behind it."""
    dim %= len(shape)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])

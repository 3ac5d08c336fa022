"""Exchanges between the GPUs of a host through peer memory: one kernel each, no copies.

An NCCL collective costs 10 us before its first byte, needs its input packed and leaves its output
to be joined. Here one kernel reads and writes the tensors with their strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import INTERPRETER
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.peer_kernel import MAX_PEERS, peer_exchange_kernel
from evofeed.kernels.runtime.private_apis import peer_buffers

SLOT = 128 << 20  # bytes of each of two slots: 5,120 sequences of 384 residues fit
PROGRAMS = (
    2 if INTERPRETER else 128
)  # they must all run at once: fewer than the SMs of any host's GPU
REGISTERS = 128  # of a thread: two exchanges fit a multiprocessor, so neither can block the other
BLOCK = 1024  # groups of 16 bytes that a program has in flight
_FLAGS = 4 * MAX_PEERS * PROGRAMS


class PeerMemory:
    """Memory of every GPU of a group, readable and writable by all of them.

    All ranks must call the same methods in the same order, on one stream each. Tensors are
    contiguous; an axis is split into consecutive parts whose lengths differ by at most one, the
    longer ones first.

    Args:
        buffers: a buffer of bytes of every rank, this one included, all zero.
        rank: of this process.
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
        """The memory of a process group; None where GPUs cannot read each other's memory.

        Every rank of the group must call it.
        """
        buffers = peer_buffers(group, device, nbytes(slot), MAX_PEERS)
        return None if buffers is None else cls(buffers, torch.distributed.get_rank(group))

    def fits(self, dtype: torch.dtype, numel: int) -> bool:
        """True if `numel` numbers fit a slot: the maximum over ranks of what one receives."""
        return dtype.is_floating_point and numel * dtype.itemsize <= self._slot

    def exchange(self, x: Tensor, split: int, join: int, length: int) -> Tensor:
        """This rank's part along `split` of a tensor sharded along `join`, of `length` in all."""
        axes = {split % x.dim(), join % x.dim()}
        others = math.prod(n for dim, n in enumerate(x.shape) if dim not in axes)
        shape = list(x.shape)
        shape[split], shape[join] = self._length(shape[split]), length
        out = x.new_empty(shape)
        behind = math.prod(x.shape[max(axes) + 1 :])
        around = *_around(x.shape, split), *_around(shape, join)
        self._run("exchange", x, out, (*around, others), behind)
        return out

    def gather(self, x: Tensor, dim: int, length: int) -> Tensor:
        """The whole tensor, of `length` along `dim`, from all ranks' parts."""
        shape = list(x.shape)
        shape[dim] = length
        out = x.new_empty(shape)
        around = _around(shape, dim)
        self._run("gather", x, out, (1, x.numel(), 1, *around, 0), around[2])
        return out

    def reduce(self, x: Tensor, dim: int, out: Tensor | None = None) -> Tensor:
        """This rank's part of the sum of all ranks' x; added in float32, or in float64."""
        shape = list(x.shape)
        shape[dim] = self._length(shape[dim])
        out = x.new_empty(shape) if out is None else out
        around = _around(x.shape, dim)
        self._run("reduce", x, out, (*around, 1, 1, 1, 0), around[2])
        return out

    def _length(self, total: int) -> int:
        length, longer = divmod(total, self._size)
        return length + (self._rank < longer)

    def _run(
        self, mode: str, x: Tensor, out: Tensor, sizes: tuple[int, ...], behind: int
    ) -> None:  # fmt: skip
        """Accesses are 16 bytes wide if `behind`, the contiguous numbers on any rank, allows it."""
        vec = max(1, 16 // x.element_size())
        vec = 1 if behind % vec else vec
        slots = self._of_type(x.dtype)
        spare = [None] * (MAX_PEERS - self._size)
        launch(
            peer_exchange_kernel, (PROGRAMS,),
            (x, out, self._count, *slots, *spare, *self._flags, *spare, *sizes,
             self._slot // x.element_size()),
            {"RANK": self._rank, "SIZE": self._size, "MODE": mode, "VEC": vec,
             "BLOCK": BLOCK, "PRECISE": x.dtype is torch.float64, "num_warps": 8,
             **({} if INTERPRETER else {"maxnreg": REGISTERS})},
        )  # fmt: skip

    def _of_type(self, dtype: torch.dtype) -> list[Tensor | None]:
        if dtype not in self._typed:
            self._typed[dtype] = [slots.view(dtype) for slots in self._slots]
        return self._typed[dtype]


def nbytes(slot: int) -> int:
    """Bytes of one rank's buffer."""
    return _FLAGS + 2 * slot


def _around(shape: Sequence[int], dim: int) -> tuple[int, int, int]:
    """Products of the sizes before an axis, along it, and behind it."""
    dim %= len(shape)
    return math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])

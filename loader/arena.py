"""Shared memory that readers write samples into and the GPU copies them out of.

One anonymous file mapped by the trainer and its reader process; the trainer
registers it as page-locked memory once, so every copy to the GPU is a true
asynchronous one. Space is handed out and taken back in order, like a ring.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
from collections import deque
from typing import Any, Final

import numpy as np

HEADER_NBYTES: Final = 4096
"""Bytes before the first slot: the reader's signs of life, on a page of their own."""
_ALIGN: Final = 512
"""Slots begin at multiples of this, so a GPU can read any dtype from their start."""


def anonymous_file(nbytes: int) -> int:
    """Descriptor of a file without a name: it goes when its last user goes, however that ends."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("evofeed-arena")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


class Arena:
    """The memory, and who has which part of it. Only the trainer allocates."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = HEADER_NBYTES + nbytes
        self.descriptor = anonymous_file(self.nbytes)
        self.memory = mmap.mmap(self.descriptor, self.nbytes)
        self.array = np.frombuffer(self.memory, np.uint8)
        self._slots: deque[tuple[int, int]] = deque()
        self._freed: set[int] = set()
        self.is_pinned = False
        """Whether CUDA accepted the memory; without it copies work, but wait."""

    def allocate(self, nbytes: int) -> int | None:
        """Offset of a free slot, or None while there is no room.

        Raises:
            ValueError: the arena can never hold that much.
        """
        nbytes += -nbytes % _ALIGN
        if nbytes > self.nbytes - HEADER_NBYTES:
            raise ValueError(
                f"a sample needs {nbytes:,} bytes and the loader has "
                f"{self.nbytes - HEADER_NBYTES:,} of shared memory: raise arena_nbytes"
            )
        offset = self._place(nbytes)
        if offset is not None:
            self._slots.append((offset, nbytes))
        return offset

    def _place(self, nbytes: int) -> int | None:
        if not self._slots:
            return HEADER_NBYTES
        first = self._slots[0][0]
        end = sum(self._slots[-1])
        if end > first:  # free: from end to the top, and below first
            if end + nbytes <= self.nbytes:
                return end
            return HEADER_NBYTES if HEADER_NBYTES + nbytes < first else None
        return end if end + nbytes < first else None

    def free(self, offset: int) -> None:
        """Give a slot back; space returns once all older, or all younger, slots are back too."""
        self._freed.add(offset)
        while self._slots and self._slots[0][0] in self._freed:
            self._freed.remove(self._slots.popleft()[0])
        while self._slots and self._slots[-1][0] in self._freed:
            self._freed.remove(self._slots.pop()[0])

    def pin(self) -> None:
        """Register the memory with CUDA, so that copies from it need no CPU."""
        error = _cudart().cudaHostRegister(self.array.ctypes.data, self.nbytes, 0)
        self.is_pinned = int(error) == 0

    def close(self) -> None:
        """Unregister and unmap. Safe to call twice."""
        if self.descriptor < 0:
            return
        if self.is_pinned:
            _cudart().cudaHostUnregister(self.array.ctypes.data)
        os.close(self.descriptor)
        self.descriptor = -1
        del self.array  # the map goes with its last view


def _cudart() -> Any:
    import torch  # the reader process maps an arena and must not pay for torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class Pulse:
    """Signs of life a reader leaves in the arena's header."""

    _BEAT: Final = struct.Struct("<dd")
    _READING: Final = struct.Struct("<q")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def beat(self, monotonic: float, cpu_seconds: float) -> None:
        """Say: alive at this time, with so much CPU time used."""
        self._BEAT.pack_into(self._memory, 0, monotonic, cpu_seconds)

    def last_beat(self) -> tuple[float, float]:
        """Time of the last beat (`time.monotonic`) and CPU seconds used till then."""
        monotonic, cpu_seconds = self._BEAT.unpack_from(self._memory, 0)
        return monotonic, cpu_seconds

    def reads(self, number: int) -> None:
        """Say which request is being read; -1 for none."""
        self._READING.pack_into(self._memory, 64, number + 1)

    def was_reading(self) -> int:
        """The request that was being read last, or -1. Means something if there was but one."""
        return int(self._READING.unpack_from(self._memory, 64)[0]) - 1


def prefault(array: np.ndarray) -> None:
    """Touch every page now rather than at the first sample."""
    ctypes.memset(array.ctypes.data, 0, array.nbytes)

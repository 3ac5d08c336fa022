"""Shared memory that readers write samples into and the GPU copies them from.

One anonymous file mapped by the trainer and its reader process; the trainer
registers it as page-locked memory once, so copies to the GPU are asynchronous.
Slots are allocated and freed in order: a ring buffer.
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
"""Bytes before the first slot: the reader's heartbeat, on its own page."""
_ALIGN: Final = 512
"""Alignment of slots in bytes: a GPU can read any dtype from their start."""


def anonymous_file(nbytes: int) -> int:
    """Descriptor of a file without a name: it is deleted once no process has it open."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("evofeed-arena")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, nbytes)
    return descriptor


class Arena:
    """The memory and its allocated slots. Only the trainer allocates."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = HEADER_NBYTES + nbytes
        self.descriptor = anonymous_file(self.nbytes)
        self.memory = mmap.mmap(self.descriptor, self.nbytes)
        self.array = np.frombuffer(self.memory, np.uint8)
        self._slots: deque[tuple[int, int]] = deque()
        self._freed: set[int] = set()
        self.is_pinned = False
        """True if CUDA registered the memory; otherwise copies are synchronous."""

    def allocate(self, nbytes: int) -> int | None:
        """Offset of a new slot, or None while the arena is full.

        Raises:
            ValueError: the slot is larger than the arena.
        """
        nbytes += -nbytes % _ALIGN
        if nbytes > self.nbytes - HEADER_NBYTES:
            raise ValueError(
                f"a sample needs {nbytes:,} bytes and the loader has "
                f"{self.nbytes - HEADER_NBYTES:,} of shared memory: raise arena_nbytes"
            )
        offset = self._free_offset(nbytes)
        if offset is not None:
            self._slots.append((offset, nbytes))
        return offset

    def _free_offset(self, nbytes: int) -> int | None:
        if not self._slots:
            return HEADER_NBYTES
        first = self._slots[0][0]
        end = sum(self._slots[-1])
        if end > first:  # free: after `end`, and before `first`
            if end + nbytes <= self.nbytes:
                return end
            return HEADER_NBYTES if HEADER_NBYTES + nbytes < first else None
        return end if end + nbytes < first else None

    def free(self, offset: int) -> None:
        """Frees a slot; its space is reusable once all older, or all younger, slots are free."""
        self._freed.add(offset)
        while self._slots and self._slots[0][0] in self._freed:
            self._freed.remove(self._slots.popleft()[0])
        while self._slots and self._slots[-1][0] in self._freed:
            self._freed.remove(self._slots.pop()[0])

    def pin(self) -> None:
        """Registers the memory with CUDA, so that copies from it are asynchronous."""
        error = _cudart().cudaHostRegister(self.array.ctypes.data, self.nbytes, 0)
        self.is_pinned = int(error) == 0

    def close(self) -> None:
        """Unregisters and unmaps the memory. Safe to call twice."""
        if self.descriptor < 0:
            return
        if self.is_pinned:
            _cudart().cudaHostUnregister(self.array.ctypes.data)
        os.close(self.descriptor)
        self.descriptor = -1
        del self.array  # the memory is unmapped with its last view


def _cudart() -> Any:
    import torch  # not at the top: the reader process imports this module without torch

    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class Pulse:
    """A reader's heartbeat and current request, in the arena's header."""

    _BEAT: Final = struct.Struct("<dd")
    _READING: Final = struct.Struct("<q")

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def beat(self, monotonic: float, cpu_seconds: float) -> None:
        """Records a heartbeat: its time (`time.monotonic`) and the CPU seconds used."""
        self._BEAT.pack_into(self._memory, 0, monotonic, cpu_seconds)

    def last_beat(self) -> tuple[float, float]:
        """Time of the last heartbeat (`time.monotonic`) and the CPU seconds used until then."""
        monotonic, cpu_seconds = self._BEAT.unpack_from(self._memory, 0)
        return monotonic, cpu_seconds

    def set_request(self, number: int) -> None:
        """Records the request that is being read; -1 for none."""
        self._READING.pack_into(self._memory, 64, number + 1)

    def last_request(self) -> int:
        """The request recorded last, or -1. Meaningful only with one request at a time."""
        return int(self._READING.unpack_from(self._memory, 64)[0]) - 1


def prefault(array: np.ndarray) -> None:
    """Touches every page, so that the first sample does not fault."""
    ctypes.memset(array.ctypes.data, 0, array.nbytes)

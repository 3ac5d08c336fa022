"""Short files that are in memory, read without waiting for a disk or a network."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Final

_OPENAT2: Final = 437  # of Linux 5.6, the same number on every machine that came with it or after
_AT_FDCWD: Final = -100
_RESOLVE_CACHED: Final = 0x20  # of Linux 5.12: fail where a name is not in memory
_DISKS: Final = frozenset(
    {
        0xEF53,  # ext2 to ext4
        0x58465342,  # xfs
        0x9123683E,  # btrfs
        0xF2F52010,  # f2fs
        0x2FC12FC1,  # zfs
        0x01021994,  # tmpfs
        0x794C7630,  # overlayfs
    }
)
"""File systems that open what is in memory without asking anybody; networks' and FUSE ask."""
_SHORT: Final = 4096  # bytes of a file, at most


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW: Final = _How(os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, 0, _RESOLVE_CACHED)
_LIBC: Final = ctypes.PyDLL(None) if sys.platform == "linux" else None  # keeps the GIL: no wait


def is_on_disk(folder: Path) -> bool:
    """Whether a folder is on a disk of this machine; this may wait for it."""
    if _LIBC is None:
        return False
    said = ctypes.create_string_buffer(256)
    waiting = ctypes.CDLL(None)  # lets go of the GIL meanwhile
    if waiting.statfs(os.fsencode(folder), said):
        return False
    return ctypes.c_long.from_buffer(said).value & 0xFFFFFFFF in _DISKS


def read_resident(path: str) -> bytes | None:
    """All bytes of a short file on a disk; None where they are not in memory, or not there."""
    if _LIBC is None:
        return None
    number = _LIBC.syscall(
        _OPENAT2, _AT_FDCWD, os.fsencode(path), ctypes.byref(_HOW), ctypes.sizeof(_HOW)
    )
    if number < 0:
        return None
    out = bytearray(_SHORT)
    try:
        length = os.preadv(number, [out], 0, os.RWF_NOWAIT)
    except OSError:  # not in memory, or no file
        return None
    finally:
        os.close(number)
    return bytes(out[:length]) if 0 < length < _SHORT else None

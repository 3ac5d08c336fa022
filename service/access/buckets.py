"""Token buckets by name: of one process, or in a file that the workers of a service map."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final, NamedTuple, Protocol

_MAX: Final = 10_000  # names remembered; the longest silent ones are forgotten first
_SLOT: Final = struct.Struct("<16sdd")  # hash of the name, level, then
_SLOTS: Final = 1 << 14
_NEAR: Final = 16  # slots that a name may be in


class Bucket(NamedTuple):
    """Requests left, and when that was."""

    level: float
    then: float


class Buckets(Protocol):
    """Where buckets are; to be used within `with`, so that nobody else changes them."""

    def __enter__(self) -> object:
        """Wait until nobody else is in."""

    def __exit__(self, *_: object) -> None:
        """Let others in."""

    def find(self, name: str) -> Bucket | None:
        """A bucket, None if it is not known: then it is full."""

    def put(self, name: str, bucket: Bucket) -> None:
        """Remember a bucket."""


class OwnBuckets:
    """Those of this process."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> object:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def find(self, name: str) -> Bucket | None:
        """As of `Buckets`."""
        return self._buckets.get(name)

    def put(self, name: str, bucket: Bucket) -> None:
        """As of `Buckets`."""
        self._buckets[name] = bucket
        self._buckets.move_to_end(name)
        if len(self._buckets) > _MAX:
            self._buckets.popitem(last=False)


class SharedBuckets:
    """Those of all processes that open the same file; a lock on it dies with who holds it.

    Args:
        path: of the file, made if it is not there. Times in it are of one machine since it started.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _SLOTS * _SLOT.size)
        self._map = mmap.mmap(self._file, _SLOTS * _SLOT.size)
        self._lock = threading.Lock()

    def __enter__(self) -> object:
        self._lock.acquire()
        return fcntl.lockf(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        self._lock.release()

    def find(self, name: str) -> Bucket | None:
        """As of `Buckets`."""
        digest, near = _near(name)
        for slot in near:
            owner, level, then = _SLOT.unpack_from(self._map, slot * _SLOT.size)
            if owner == digest:
                return Bucket(level, then)
        return None

    def put(self, name: str, bucket: Bucket) -> None:
        """As of `Buckets`; of names that have no room beside each other the oldest goes."""
        digest, near = _near(name)
        found = [(slot, *_SLOT.unpack_from(self._map, slot * _SLOT.size)) for slot in near]
        slot = min(found, key=lambda one: (one[1] != digest, one[3]))[0]
        _SLOT.pack_into(self._map, slot * _SLOT.size, digest, *bucket)

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        os.close(self._file)


def _near(name: str) -> tuple[bytes, list[int]]:
    digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
    first = int.from_bytes(digest[:8], "little")
    return digest, [(first + i) % _SLOTS for i in range(_NEAR)]

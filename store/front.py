"""Storages that wrap a remote one: their base class, and one that reads ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evofeed.store.storage import Storage, SupportsForget

PIECE: Final = 16 << 20
"""Bytes of a shard in one request when all of it is read."""


class FrontStorage:
    """A storage that wraps another: subclasses add `read_into`, all else is the remote's."""

    def __init__(self, remote: Storage) -> None:
        self.remote, self.uri = remote, remote.uri
        self.read, self.put, self.swap = remote.read, remote.put, remote.swap
        self.files, self.delete = remote.files, remote.delete

    def forget(self, key: str) -> None:
        """Read the file from its source next time."""
        if isinstance(self.remote, SupportsForget):
            self.remote.forget(key)

    def close(self) -> None:
        """Close the remote's files and connections."""
        self.remote.close()


class ReadAhead(FrontStorage):
    """Fetches shards in pieces of 16 MiB, for one reader that reads all of them in file order."""

    def __init__(self, remote: Storage, sizes: Mapping[str, int]) -> None:
        super().__init__(remote)
        self._sizes, self._piece = sizes, PIECE
        self._key, self._start, self._data = "", 0, memoryview(b"")

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` from the buffered piece, or from a new one that begins at `offset`."""
        start = offset - self._start
        if key != self._key or start < 0 or start + len(out) > len(self._data):
            rest = min(self._piece, self._sizes.get(key, 0) - offset)
            piece = memoryview(bytearray(max(len(out), rest)))
            self.remote.read_into(key, offset, piece)
            self._key, self._start, self._data, start = key, offset, piece, 0
            self._piece = PIECE
        out[:] = self._data[start : start + len(out)]

    def forget(self, key: str) -> None:
        """Fetch the next range alone: a truncated shard has complete chains before its end."""
        self._data, self._piece = memoryview(b""), 0
        super().forget(key)

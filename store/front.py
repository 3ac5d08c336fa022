"""Storages in front of others: what they have in common, and one that reads ahead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from evofeed.store.storage import Bytes, Keeping, Storage, StoredObject

PIECE: Final = 16 << 20
"""Bytes of a shard that are fetched at once by who reads all of it."""


class FrontStorage:
    """A storage in front of another, to which goes whatever it does not do in a way of its own."""

    def __init__(self, remote: Storage) -> None:
        self.remote = remote

    @property
    def uri(self) -> str:
        """The address of the one behind."""
        return self.remote.uri

    def read(self, key: str) -> bytes:
        """All bytes of a file."""
        return self.remote.read(key)

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` from `offset`."""
        self.remote.read_into(key, offset, out)

    def put(self, key: str, data: Bytes) -> None:
        """Create or replace a file."""
        self.remote.put(key, data)

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Compare and replace."""
        return self.remote.swap(key, old, new)

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Files below a prefix."""
        return self.remote.files(prefix)

    def delete(self, key: str) -> None:
        """Remove a file."""
        self.remote.delete(key)

    def forget(self, key: str) -> None:
        """Read it again next time."""
        if isinstance(self.remote, Keeping):
            self.remote.forget(key)

    def close(self) -> None:
        """Let go of what is open behind."""
        self.remote.close()


class ReadAhead(FrontStorage):
    """Fetches a shard in pieces of 16 MiB, for one reader of all that it holds, in file order."""

    def __init__(self, remote: Storage, sizes: Mapping[str, int]) -> None:
        super().__init__(remote)
        self._sizes, self._piece = sizes, PIECE
        self._key, self._start, self._held = "", 0, memoryview(b"")

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` out of the piece that is held, or of the next one, which begins there."""
        at = offset - self._start
        if key != self._key or at < 0 or at + len(out) > len(self._held):
            rest = min(self._piece, self._sizes.get(key, 0) - offset)
            piece = memoryview(bytearray(max(len(out), rest)))
            self.remote.read_into(key, offset, piece)
            self._key, self._start, self._held, at = key, offset, piece, 0
            self._piece = PIECE
        out[:] = self._held[at : at + len(out)]

    def forget(self, key: str) -> None:
        """Fetch what is read next alone: a shard that is cut short has whole chains before that."""
        self._held, self._piece = memoryview(b""), 0
        super().forget(key)

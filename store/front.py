"""Storages in front of others: what they have in common, and one that reads ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from evofeed.store.storage import Keeping, Storage

PIECE: Final = 16 << 20
"""Bytes of a shard that are fetched at once by who reads all of it."""


class FrontStorage:
    """A storage in front of another: `read_into` is its own, what is taken over is the other's."""

    def __init__(self, remote: Storage) -> None:
        self.remote, self.uri = remote, remote.uri
        self.read, self.put, self.swap = remote.read, remote.put, remote.swap
        self.files, self.delete = remote.files, remote.delete

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

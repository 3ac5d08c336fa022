"""One dataset's store, and snapshots of it held open."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np

from evofeed.base.errors import StoreError
from evofeed.service.problems import Problem
from evofeed.store import Dataset, ShardEntry
from evofeed.store.inner import (
    DIGEST,
    LocalStorage,
    Ref,
    S3Storage,
    Storage,
    list_refs,
    move_ref,
    read_manifest,
    read_ref,
    shard_key,
)

ReadAt = Callable[[int, int], bytes | memoryview]
"""`read(offset, length)`: exactly those bytes."""


class StoreView:
    """The store behind a dataset, as the service sees it. Safe to use from many threads.

    Args:
        storage: of the dataset, as `open_place` opens it.
    """

    def __init__(self, storage: Storage) -> None:
        self.uri, self._storage = storage.uri, storage
        self.manifest = lru_cache(None)(lambda digest: read_manifest(storage, digest))
        self._shards: dict[str, ShardEntry] = {}  # of the snapshots seen
        self._seen: set[str] = set()

    def ref(self, name: str) -> Ref:
        """Where a ref points (raises DatasetMissing: there is no such ref)."""
        return read_ref(self._storage, name)

    def refs(self) -> list[Ref]:
        """All refs, by name."""
        return list_refs(self._storage)

    def move_ref(self, name: str, digest: str | None, expect: str | None) -> Ref:
        """Move a ref (None: delete it) by the store's own compare-and-swap.

        Raises:
            RefConflict: it points elsewhere.
        """
        return move_ref(self._storage, name, digest, expect, again=False)

    def digests(self) -> list[tuple[str, float]]:
        """Snapshots there are and when each was completed (Unix time)."""
        return [
            (digest, item.modified)
            for item in self._storage.files("snapshots/")
            for _, digest, file in [item.key.split("/", 2)]
            if file == "manifest.json" and DIGEST.fullmatch(digest)
        ]

    def snapshot(self, digest: str) -> Dataset:
        """A snapshot, its index mapped where it is on a local disk, and checked.

        Raises:
            DatasetMissing: there is no such snapshot.
            ShardCorrupt: the index does not match the manifest.
        """
        return Dataset.of(self._storage, digest)

    def find_shard(self, name: str) -> ShardEntry:
        """A shard by name, if some snapshot lists it (raises Problem: 404)."""
        if name not in self._shards:
            for digest, _ in self.digests():
                if digest not in self._seen:
                    self._shards |= {entry.name: entry for entry in self.manifest(digest).shards}
                    self._seen.add(digest)
        if (entry := self._shards.get(name)) is not None:
            return entry
        what = f"no snapshot of this dataset lists shard {name[:80]!r}"
        raise Problem(404, "shard_missing", what, next="read the manifest again")

    def path_of(self, shard: str) -> Path | None:
        """Where a shard is, if that is on a local disk."""
        local = self._storage
        return local.path(shard_key(shard)) if isinstance(local, LocalStorage) else None

    def sign(self, names: list[str], seconds: int) -> list[str] | None:
        """Presigned GET URLs of shards, good for so long; None where nobody would serve such.

        Raises:
            StoreError: the storage refused.
        """
        if not isinstance(self._storage, S3Storage):
            return None
        import obstore.exceptions

        keys = [shard_key(name) for name in names]
        lifetime = datetime.timedelta(seconds=seconds)
        try:
            return list(obstore.sign(self._storage.store(), "GET", keys, lifetime))
        except obstore.exceptions.BaseError as error:
            first = str(error).strip().splitlines()[0]
            raise StoreError(f"cannot sign: {first}", path=self.uri) from None

    def reader(self, key: str) -> ReadAt:
        """Reads spans of a file."""

        def read(offset: int, length: int) -> memoryview:
            out = np.empty(length, np.uint8).data
            self._storage.read_into(key, offset, out)
            return out

        return read

"""One dataset's store, and snapshots of it held open."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.errors import DatasetMissing, ShardMissing, StoreError
from evofeed.service.filters.columns import Columns
from evofeed.service.problems import Problem
from evofeed.service.snapshots.links import Links
from evofeed.service.work import require_thread
from evofeed.store import Dataset, Manifest, ShardEntry
from evofeed.store.inner import (
    DIGEST,
    LocalStorage,
    Ref,
    S3Storage,
    Storage,
    checked_index,
    delete_ref,
    is_on_disk,
    list_refs,
    move_ref,
    open_storage,
    read_ref,
    resident_ref,
    shard_key,
)

ReadAt = Callable[[int, int], bytes | memoryview]
"""`read(offset, length)`: exactly those bytes."""

_SHORT: Final = 1 << 20  # bytes: copied in 0.1 ms


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard some snapshot lists.

    Attributes:
        name: file name below `shards/`.
        sha256: of its bytes.
        nbytes: its size.
        read: reads a span of it.
        path: where it is, if that is on a local disk.
    """

    name: str
    sha256: str
    nbytes: int
    read: ReadAt
    path: Path | None


@dataclass(frozen=True, slots=True)
class OpenSnapshot:
    """A snapshot whose index is in memory (or mapped, where it is on a local disk).

    Attributes:
        digest: its name.
        manifest_bytes: the canonical bytes.
        manifest: the same, parsed.
        index: one row per chain.
        ordered: its rows are sorted by id, as they should be.
        columns: those that describe a chain, made ready for pages.
        read_index: reads a span of the index file.
    """

    digest: str
    manifest_bytes: bytes
    manifest: Manifest
    index: pa.Table
    ordered: bool
    columns: Columns
    read_index: ReadAt


def is_ordered(index: pa.Table) -> bool:
    """True if the rows are sorted by id, none twice."""
    ids = index["chain_id"]
    return bool(pc.all(pc.less(ids.slice(0, len(ids) - 1), ids.slice(1))).as_py()) or len(ids) < 2


class StoreView:
    """The store behind a URI, as the service sees it. Safe to use from many threads.

    Args:
        uri: of the dataset.
        seconds: a bucket may take for one request.
    """

    def __init__(self, uri: str, seconds: float) -> None:
        self.uri = uri
        self._storage: Storage = open_storage(uri, seconds=seconds)
        self._manifests: dict[str, Manifest] = {}
        self._shards: dict[str, ShardEntry] = {}  # of the snapshots seen
        self._seen: set[str] = set()
        self._on_disk: bool | None = None  # its refs are on a disk of this machine; None: not known
        self._lock = threading.Lock()

    @property
    def storage(self) -> Storage:
        """Where its files are, for whoever writes there."""
        return self._storage

    def ref(self, name: str) -> Ref:
        """Where a ref points.

        Raises:
            DatasetMissing: there is no such ref.
        """
        local = self._storage if isinstance(self._storage, LocalStorage) else None
        if local is not None and self._on_disk is None and local.path("refs").is_dir():
            self._on_disk = is_on_disk(local.path("refs"))
        return read_ref(self._storage, name)

    def resident_ref(self, name: str) -> Ref | None:
        """The same without waiting for anything; None where it has to be asked for."""
        if not self._on_disk or not isinstance(self._storage, LocalStorage):
            return None
        return resident_ref(self._storage, name)

    def refs(self) -> list[Ref]:
        """All refs, by name."""
        return list_refs(self._storage)

    def move_ref(self, name: str, digest: str | None, expect: str | None) -> Ref:
        """Move a ref (None: delete it) by the store's own compare-and-swap.

        Raises:
            RefConflict: it points elsewhere.
        """
        if digest is None:
            return delete_ref(self._storage, name, expect or "")
        return move_ref(self._storage, name, digest, expect, again=False)

    def digests(self) -> list[tuple[str, float]]:
        """Snapshots there are and when each was completed (Unix time), newest first."""
        found = [
            (item.key.split("/")[1], item.modified)
            for item in self._storage.files("snapshots/")
            if item.key.endswith("/manifest.json")
        ]
        whole = [(digest, at) for digest, at in found if DIGEST.fullmatch(digest)]
        return sorted(whole, key=lambda pair: (-pair[1], pair[0]))

    def manifest(self, digest: str) -> Manifest:
        """A snapshot's manifest.

        Raises:
            DatasetMissing: there is no such snapshot.
        """
        with self._lock:
            if digest in self._manifests:
                return self._manifests[digest]
        key = f"snapshots/{digest}/manifest.json"
        try:
            data = self._storage.read(key)
        except ShardMissing:
            raise DatasetMissing(f"no snapshot {digest[:12]}", path=self.uri) from None
        manifest = Manifest.from_bytes(data, digest, f"{self.uri}/{key}")
        with self._lock:
            return self._manifests.setdefault(digest, manifest)

    def open_snapshot(self, digest: str) -> OpenSnapshot:
        """Map and check a snapshot's index.

        Raises:
            DatasetMissing: there is no such snapshot.
            ShardCorrupt: the index does not match the manifest.
        """
        manifest = self.manifest(digest)
        index = checked_index(self._storage, digest, manifest)
        ordered = is_ordered(index)
        return OpenSnapshot(
            digest=digest,
            manifest_bytes=manifest.to_bytes(),
            manifest=manifest,
            index=index,
            ordered=ordered,
            columns=Columns(index, ordered=ordered),
            read_index=self.reader(f"snapshots/{digest}/index.arrow"),
        )

    def dataset(self, snapshot: OpenSnapshot) -> Dataset:
        """A snapshot's chains, for reading whole records."""
        return Dataset(self._storage, snapshot.digest, snapshot.manifest, snapshot.index)

    def find_shard(self, name: str) -> ShardFile:
        """A shard by name, if some snapshot lists it.

        Raises:
            Problem: 404.
        """
        if name not in self._shards:
            for digest, _ in self.digests():
                if digest not in self._seen:
                    self._shards |= {entry.name: entry for entry in self.manifest(digest).shards}
                    self._seen.add(digest)
        if (entry := self._shards.get(name)) is not None:
            read = self.reader(shard_key(name))
            key, local = shard_key(name), self._storage
            path = local.path(key) if isinstance(local, LocalStorage) else None
            return ShardFile(name, entry.sha256, entry.nbytes, read, path)
        raise Problem(
            404,
            "shard_missing",
            f"no snapshot of this dataset lists shard {name[:80]!r}",
            next="read the manifest again",
        )

    def sign(self, names: list[str], seconds: int, links: Links | None) -> list[str] | None:
        """Presigned GET URLs of shards, or None where nobody would serve such.

        Args:
            names: of shards.
            seconds: until they end.
            links: of the nginx in front; they are paths there.

        Raises:
            StoreError: the storage refused.
        """
        if isinstance(self._storage, LocalStorage) and links is not None:
            return links.sign(self._storage.root, names, seconds)
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
        """Reads spans of a file; short ones that are in memory also on the event loop."""
        local = self._storage if isinstance(self._storage, LocalStorage) else None

        def read(offset: int, length: int) -> memoryview:
            out = np.empty(length, np.uint8).data
            if local is not None and length <= _SHORT and local.read_resident(key, offset, out):
                return out
            require_thread()
            self._storage.read_into(key, offset, out)
            return out

        return read

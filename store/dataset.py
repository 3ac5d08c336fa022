"""A snapshot open for reading: `Dataset.open(uri)`."""

from __future__ import annotations

import hashlib
import itertools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from evofeed.base.counts import ReportDone, counted
from evofeed.base.errors import ShardCorrupt, StoreError
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.features import RECORD
from evofeed.store.assemblies import Assemblies
from evofeed.store.cache import Cache, CachedStorage
from evofeed.store.decode import FEATURES, crop_features
from evofeed.store.entries import Entries
from evofeed.store.entry_shards import record_rows
from evofeed.store.front import ReadAhead
from evofeed.store.history import (
    Diff,
    Snapshot,
    diff_indexes,
    find_snapshot,
    list_snapshots,
    read_manifest,
)
from evofeed.store.index import check_spans, read_index
from evofeed.store.layout import CHAIN
from evofeed.store.manifest import REPAIR, Manifest, ShardEntry
from evofeed.store.opening import open_storage
from evofeed.store.shard import shard_index, shard_key, shard_kind
from evofeed.store.spans import Spans
from evofeed.store.storage import LocalStorage, Storage

REMOTE_READS = 16
"""Concurrent ranged reads of one `Dataset.read` over a network."""


class Dataset:
    """One immutable snapshot of chains. Open it with `Dataset.open`.

    Safe to use from many threads, to fork and to pickle. Every read is checked
    against the checksum in the index.
    """

    def __init__(self, storage: Storage, digest: str, manifest: Manifest, index: pa.Table) -> None:
        self.storage, self.digest, self.manifest, self.index = storage, digest, manifest, index

    @cached_property
    def spans(self) -> Spans:
        """Spans of its chains, built at the first read."""
        return Spans(self.storage, self.index)

    @classmethod
    def open(
        cls,
        uri: str | os.PathLike[str],
        snapshot: str = "main",
        *,
        token: str | None = None,
        cache: Cache | None = None,
    ) -> Dataset:
        """Open a dataset: a path, `file://`, `s3://` or `http(s)://`.

        Args:
            snapshot: a ref, or a digest; its first 8 digits are enough if files can be listed.
            token: bearer token for a service that needs one; if None, the value of the variable
                `EVOFEED_TOKEN` at each request.
            cache: keep shards of a remote dataset in a local folder, limited in bytes.

        Raises:
            DatasetMissing: no such dataset, ref or snapshot.
            SchemaMismatch: written by a newer evofeed.
            ShardCorrupt: manifest or index do not match their checksums.
        """
        dataset = cls.of(open_storage(uri, token=token), snapshot)
        if cache is None:
            return dataset
        sizes = {entry.name: entry.nbytes for entry in dataset.manifest.shards}
        storage = CachedStorage(dataset.storage, cache, sizes)
        return cls(storage, dataset.digest, dataset.manifest, dataset.index)

    @classmethod
    def of(cls, storage: Storage, snapshot: str = "main") -> Dataset:
        """As `open`, for an open storage."""
        return _reopen(storage, find_snapshot(storage, snapshot))

    @property
    def uri(self) -> str:
        """Address it was opened with."""
        return self.storage.uri

    def close(self) -> None:
        """Close files and connections; the next read opens them again."""
        self.storage.close()

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self.index.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.index["chain_id"].to_pylist())

    def __contains__(self, chain_id: object) -> bool:
        try:
            return isinstance(chain_id, str) and self.spans.row(chain_id) >= 0
        except KeyError:
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.storage, self.digest)

    @cached_property
    def assemblies(self) -> Assemblies:
        """The complexes of this snapshot, if it has any: `dataset.assemblies["1abc"]`.

        Raises:
            ShardCorrupt: their table or the index of their members is damaged.
        """
        return Assemblies(self)

    @cached_property
    def entries(self) -> Entries:
        """The entries of this snapshot, if it has any: `dataset.entries["1abc-1"]`.

        Raises:
            ShardCorrupt: their tables are damaged.
        """
        return Entries(self)

    def snapshot_file(self, name: str) -> tuple[bytes, str]:
        """A file of this snapshot besides manifest and index, checked, and its path.

        Raises:
            ShardCorrupt: its sha256 is not that of the manifest.
        """
        key = f"snapshots/{self.digest}/{name}"
        data, path = bytes(self.storage.read(key)), f"{self.uri}/{key}"
        if hashlib.sha256(data).hexdigest() != self.manifest.file_table[name]["sha256"]:
            raise ShardCorrupt("it does not match the manifest's sha256", path=path)
        return data, path

    def row(self, chain: str | int) -> int:
        """Row of a chain in the index; `KeyError` if it is not in this snapshot."""
        return self.spans.row(chain)

    def __getitem__(self, chain: str | int) -> ChainRecord:
        return self.spans.record(self.spans.row(chain))

    def read(
        self,
        ids: Sequence[str | int],
        columns: Sequence[str] | None = None,
        residues: slice | None = None,
        rows: slice | Sequence[int] | np.ndarray | None = None,
    ) -> list[dict[str, np.ndarray]]:
        """Features of many chains, full or cropped.

        Args:
            ids: chain ids, or rows of the index.
            columns: names from the feature table, and `deletion_matrix` (i32, dense);
                None for every array in the table.
            residues: window along the chain, step 1.
            rows: MSA rows to take, numbered in the record's order (0 is the query).

        Returns:
            One dict per chain. Sparse deletions are re-numbered to the crop. Absent
            structure arrays are left out.

        Raises:
            TypeError: `ids` is one id, not a sequence of them.
        """
        if isinstance(ids, str):  # its letters would be taken for ids
            raise TypeError(f"read takes a sequence of ids: read([{ids!r}])")
        names = tuple(columns) if columns is not None else tuple(f.name for f in RECORD)
        if unknown := set(names) - set(FEATURES) - {"deletion_matrix"}:
            raise ValueError(f"no such columns: {sorted(unknown)}")

        def read_one(chain: str | int) -> dict[str, np.ndarray]:
            return crop_features(self.spans.decoder(self.row(chain)), names, residues, rows)

        if isinstance(self.storage, LocalStorage) or len(ids) < 2:
            return [read_one(chain) for chain in ids]
        with ThreadPoolExecutor(REMOTE_READS) as pool:  # these threads wait for the network
            return list(pool.map(read_one, ids))

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot of this dataset, children before their parents.

        Over HTTP, where files cannot be listed: this snapshot and its ancestors.
        """
        return list_snapshots(self.storage, self.digest)

    def diff(self, first: str) -> Diff:
        """Chains that changed from a snapshot, a ref or digest, to this one."""
        return Dataset.of(self.storage, first).diff_with(self)

    def diff_with(self, other: Dataset) -> Diff:
        """Chains that changed from this snapshot to another, of any dataset."""
        return diff_indexes(self.index, other.index)

    def __repr__(self) -> str:
        return f"Dataset({self.uri!r}, {self.digest[:12]}, {counted(len(self), 'chain')})"

    def verify(self, deep: bool = False, progress: ReportDone | None = None) -> list[StoreError]:
        """An error for each fault, empty if there is none; never raises for bad data.

        Checks that each shard exists with its size and every record with its checksum; `deep` also
        hashes each shard, parses it as Arrow and decodes all records. `progress` is called with
        the number of records and shards checked so far, and of all.
        """
        if isinstance(self.storage, LocalStorage):
            return self._faults(deep, progress)
        sizes = {shard_key(entry.name): entry.nbytes for entry in self.manifest.shards}
        storage = ReadAhead(self.storage, sizes)
        return Dataset(storage, self.digest, self.manifest, self.index)._faults(deep, progress)

    def _faults(self, deep: bool, progress: ReportDone | None) -> list[StoreError]:
        faults: list[StoreError] = []
        checks: list[tuple[Callable[[Any], object], Sequence[Any]]] = []

        def attempt(function: Callable[..., object], *args: Any) -> None:
            try:
                function(*args)
            except StoreError as error:
                faults.append(error)

        def add_spans(spans: Spans) -> None:
            rows = np.lexsort((spans.offset, spans.shard)).tolist()  # in file order
            checks.append((spans.record if deep else spans.read_span, rows))

        add_spans(self.spans)
        attempt(lambda: add_spans(self.assemblies.members))
        attempt(lambda: checks.append((self.entries.check, self.entries.spans())))
        checks.append((self._check_shard, self.manifest.shards if deep else ()))
        total, done = sum(len(items) for _, items in checks), itertools.count(1)
        for function, items in checks:
            for item in items:
                attempt(function, item)
                if progress:
                    progress(next(done), total)
        return faults

    def _check_shard(self, entry: ShardEntry) -> None:
        """Hash and parse a full shard and decode all its records (raises StoreError)."""
        key = shard_key(entry.name)
        data, path = self.storage.read(key), f"{self.uri}/{key}"
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ShardCorrupt("sha256 does not match", path=path)
        buffer = pa.py_buffer(data)
        rows = shard_index if shard_kind(buffer, path) == CHAIN else record_rows
        rows(buffer, entry.name, path)


def checked_index(storage: Storage, digest: str, manifest: Manifest) -> pa.Table:
    """The index of a snapshot, checked against its manifest and validated in full."""
    key = f"snapshots/{digest}/index.arrow"
    path = f"{storage.uri}/{key}"
    # From a folder it is memory-mapped, so all ranks of a host share one copy.
    data = storage.map(key) if isinstance(storage, LocalStorage) else storage.read(key)
    if hashlib.sha256(data).hexdigest() != manifest.index_sha256:
        raise ShardCorrupt(f"the index does not match the manifest's sha256{REPAIR}", path=path)
    table = read_index(pa.py_buffer(data), path)
    if table.num_rows != manifest.num_chains:
        raise ShardCorrupt(f"{table.num_rows} chains, not {manifest.num_chains}", path=path)
    check_spans(table, {entry.name: entry.nbytes for entry in manifest.shards}, path)
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)  # pages that are not read again need not stay in memory
    return table


def _reopen(storage: Storage, digest: str) -> Dataset:
    manifest = read_manifest(storage, digest)
    return Dataset(storage, digest, manifest, checked_index(storage, digest, manifest))

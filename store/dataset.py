"""A snapshot, opened for reading: `Dataset.open(uri)`."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.errors import DatasetMissing, ShardCorrupt, ShardMissing, StoreError
from evofeed.features import RECORD, ChainRecord
from evofeed.store.decode import FEATURES, Place, decode_record
from evofeed.store.index import read_index
from evofeed.store.layout import COLUMNS, PackedColumn, unpack_column
from evofeed.store.manifest import DIGEST, Manifest
from evofeed.store.refs import read_ref
from evofeed.store.shard import shard_index, shard_key
from evofeed.store.storage import Storage, open_storage


class Dataset:
    """One immutable snapshot of chains. Open it with `Dataset.open`.

    Safe to use from many threads, to fork and to pickle. Every read is checked
    against the checksum in the index.
    """

    def __init__(self, storage: Storage, digest: str, manifest: Manifest, index: pa.Table) -> None:
        self.storage, self.digest, self.manifest, self.index = storage, digest, manifest, index
        self._shards = index["shard"].chunk(0).dictionary.to_pylist() if len(index) else []
        self._shard = _numbers(index, "shard")
        self._offset = _numbers(index, "offset")
        self._nbytes = _numbers(index, "nbytes")
        self._checksum = _numbers(index, "checksum")
        self._columns = _numbers(index, "column_offsets").reshape(-1, len(COLUMNS) + 1)
        self._ids = index["chain_id"].chunk(0) if len(index) else []

    @classmethod
    def open(cls, uri: str | os.PathLike[str], snapshot: str = "main") -> Dataset:
        """Open a dataset: a path, `file://`, `s3://` or `http(s)://`.

        Args:
            uri: where it lies.
            snapshot: a ref, or a full digest.

        Raises:
            DatasetMissing: no such dataset, ref or snapshot.
            SchemaMismatch: written by a newer evofeed.
            ShardCorrupt: manifest or index do not match their checksums.
        """
        storage = open_storage(uri)
        is_digest = DIGEST.fullmatch(snapshot)
        digest = snapshot if is_digest else read_ref(storage, snapshot).digest
        manifest = read_manifest(storage, digest)
        return cls(storage, digest, manifest, _checked_index(storage, digest, manifest))

    @property
    def uri(self) -> str:
        """Where it was opened from."""
        return self.storage.uri

    def __len__(self) -> int:
        return int(self.index.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.index["chain_id"].to_pylist())

    def __contains__(self, chain_id: object) -> bool:
        try:
            return isinstance(chain_id, str) and self.row(chain_id) >= 0
        except KeyError:
            return False

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.storage, self.digest)

    def row(self, chain: str | int) -> int:
        """Row of a chain in the index.

        Raises:
            KeyError: no such chain in this snapshot.
        """
        if isinstance(chain, str):
            at = bisect_left(self._ids, chain, key=lambda value: value.as_py())
            if at == len(self) or self._ids[at].as_py() != chain:
                raise KeyError(f"no chain {chain!r} in snapshot {self.digest[:12]}")
            return at
        if not -len(self) <= chain < len(self):
            raise KeyError(f"no row {chain}: the snapshot has {len(self)} chains")
        return int(chain) % len(self)

    def __getitem__(self, chain: str | int) -> ChainRecord:
        row = self.row(chain)
        place = self._place(row)
        return decode_record(self._unpack(row, self.read_span(row)), place)

    def read_span(self, row: int, *, verify: bool = True) -> memoryview:
        """The bytes of one chain, by one ranged read, checked against the index.

        Raises:
            ShardCorrupt: they do not match the checksum.
            ShardMissing: the shard is not there.
        """
        span = memoryview(bytearray(int(self._nbytes[row])))
        place = self._place(row)
        try:
            self.storage.read_into(self._key(row), int(self._offset[row]), span)
        except ShardMissing as error:
            raise ShardMissing(error.message, path=place.path, item=place.chain_id) from None
        except StoreError as error:
            raise ShardCorrupt(error.message, path=place.path, item=place.chain_id) from None
        if verify and xxhash.xxh3_64_intdigest(span) != self._checksum[row]:
            raise place.corrupt("checksum does not match: fetch the shard again")
        return span

    def _unpack(self, row: int, span: memoryview, verify: bool = False) -> dict[str, PackedColumn]:
        starts, place = self._columns[row].tolist(), self._place(row)
        return {
            name: unpack_column(span[start:stop], place.chain_id, name, place.path, verify=verify)
            for name, start, stop in zip(COLUMNS, starts[:-1], starts[1:], strict=True)
        }

    def _key(self, row: int) -> str:
        return shard_key(self._shards[self._shard[row]])

    def _place(self, row: int) -> Place:
        return Place(self._ids[row].as_py(), f"{self.uri}/{self._key(row)}")

    def read(
        self,
        ids: Sequence[str | int],
        columns: Sequence[str] | None = None,
        residues: slice | None = None,
        rows: slice | Sequence[int] | np.ndarray | None = None,
    ) -> list[dict[str, np.ndarray]]:
        """Features of many chains, whole or cropped.

        Args:
            ids: chain ids, or rows of the index.
            columns: names from the feature table, and `deletion_matrix` (i32, dense);
                None for every array in the table.
            residues: window along the chain, step 1.
            rows: MSA rows to take, in the record's own order (0 is the query).

        Returns:
            One dict per chain. Sparse deletions are re-numbered to the crop. Absent
            structure arrays are left out.
        """
        wanted = tuple(columns) if columns is not None else tuple(f.name for f in RECORD)
        unknown = set(wanted) - set(FEATURES) - {"deletion_matrix"}
        if unknown:
            raise ValueError(f"no such columns: {sorted(unknown)}")
        return [crop_record(self[chain], wanted, residues, rows) for chain in ids]

    def verify(self, deep: bool = False) -> list[StoreError]:
        """Every fault found, empty if all is well; never raises for bad data.

        Checks that each shard is there with its size and every chain with its
        checksum; `deep` also hashes each shard, parses it as Arrow and decodes all
        records.
        """
        faults: list[StoreError] = []
        for row in range(len(self)):
            try:
                self.read_span(row)
                if deep:
                    self[row]
            except StoreError as error:
                faults.append(error)
        for entry in self.manifest.shards if deep else ():
            try:
                check_shard(self.storage, entry.name, entry.sha256)
            except StoreError as error:
                faults.append(error)
        return faults


def check_shard(storage: Storage, name: str, sha256: str) -> None:
    """Hash and parse a whole shard.

    Raises:
        ShardCorrupt, ShardMissing, SchemaMismatch: it is not sound.
    """
    path = f"{storage.uri}/{shard_key(name)}"
    data = storage.read(shard_key(name))
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ShardCorrupt("sha256 does not match", path=path)
    shard_index(pa.py_buffer(data), name, path)


def crop_record(
    record: ChainRecord,
    columns: Sequence[str],
    residues: slice | None,
    rows: slice | Sequence[int] | np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Chosen features of a record within a window and a set of MSA rows: the plain way."""
    start, stop, step = (residues or slice(None)).indices(record.num_res)
    if step != 1:
        raise ValueError("a residue window has step 1")
    taken = np.arange(record.num_alignments)[rows if rows is not None else slice(None)]
    dense = record.deletion_matrix()[taken, start:stop] if _wants_deletions(columns) else None
    cropped: dict[str, np.ndarray] = {}
    for name in columns:
        if name == "deletion_matrix" and dense is not None:
            cropped[name] = dense
            continue
        if name.startswith("deletion_") and dense is not None:
            at = np.nonzero(dense)
            parts = {"deletion_row": at[0], "deletion_column": at[1], "deletion_count": dense[at]}
            cropped[name] = parts[name].astype(np.int32)
            continue
        value = getattr(record, name)
        if value is None:
            continue
        value = np.asarray(value)
        for axis, dim in enumerate(FEATURES[name].dims):
            if dim == "L":
                value = value[(slice(None),) * axis + (slice(start, stop),)]
            elif dim == "N":
                value = value[(slice(None),) * axis + (taken,)]
        cropped[name] = value
    return cropped


def _wants_deletions(columns: Sequence[str]) -> bool:
    return any(name.startswith("deletion_") for name in columns)


def read_manifest(storage: Storage, digest: str) -> Manifest:
    """The manifest of a snapshot.

    Raises:
        DatasetMissing: there is no such snapshot.
    """
    key = f"snapshots/{digest}/manifest.json"
    try:
        data = storage.read(key)
    except ShardMissing:
        raise DatasetMissing(f"no snapshot {digest[:12]}", path=storage.uri) from None
    return Manifest.from_bytes(data, digest, f"{storage.uri}/{key}")


def _checked_index(storage: Storage, digest: str, manifest: Manifest) -> pa.Table:
    key = f"snapshots/{digest}/index.arrow"
    path = f"{storage.uri}/{key}"
    data = storage.read(key)
    if hashlib.sha256(data).hexdigest() != manifest.index_sha256:
        raise ShardCorrupt("the index does not match the manifest's sha256", path=path)
    table = read_index(data, path)
    if table.num_rows != manifest.num_chains:
        raise ShardCorrupt(f"{table.num_rows} chains, not {manifest.num_chains}", path=path)
    return table


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    if not table.num_rows:
        return np.zeros(0, np.int64)
    chunk = table[name].chunk(0)
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.indices
    elif pa.types.is_fixed_size_list(chunk.type):
        chunk = chunk.flatten()
    return np.asarray(chunk.to_numpy(zero_copy_only=True))


def _reopen(storage: Storage, digest: str) -> Dataset:
    manifest = read_manifest(storage, digest)
    return Dataset(storage, digest, manifest, _checked_index(storage, digest, manifest))

"""Building a snapshot: shards in, one atomic commit out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evofeed.chain_record import ChainRecord
from evofeed.errors import DatasetMissing, ShardMissing
from evofeed.store.encode import encode_record
from evofeed.store.faults import reached
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical, index_bytes
from evofeed.store.layout import PackedColumn
from evofeed.store.manifest import Manifest, ShardEntry, canonical_json, check_name
from evofeed.store.opening import open_storage
from evofeed.store.refs import move_ref
from evofeed.store.shard import read_part, shard_bytes, store_shard
from evofeed.store.storage import Storage

if TYPE_CHECKING:
    from evofeed.store.assemblies import KeptAssemblies

MoveRef = Callable[[Storage, str, str, str | None], object]
"""Moves a ref to a digest if it is at the expected one, as `evofeed.store.refs.move_ref` does."""

SHARD_NBYTES = 256 << 20
"""Where `DatasetWriter.add` starts a new shard: about 600 chains, one S3 upload."""


class DatasetWriter:
    """Collects shards and publishes them as one snapshot.

    Records given to `add` are encoded at once and written when a shard is full;
    shards written elsewhere come in by `add_shard`. Nothing is visible to any
    reader before `commit`.
    """

    def __init__(self, uri: str, *, shard_nbytes: int = SHARD_NBYTES, zstd: bool = False) -> None:
        self.storage, self.zstd = open_storage(uri), zstd
        self.shard_nbytes = shard_nbytes
        self._entries: dict[str, ShardEntry] = {}
        self._pending: dict[str, dict[str, PackedColumn]] = {}
        self._pending_nbytes = 0

    def add(self, record: ChainRecord) -> None:
        """Add one chain; writes a shard whenever enough have come together."""
        if check_name(record.chain_id, "chain id") in self._pending:
            raise ValueError(f"chain {record.chain_id} was added before")
        columns = encode_record(record, zstd=self.zstd)
        self._pending[record.chain_id] = columns
        self._pending_nbytes += sum(len(column.payload) for column in columns.values())
        if self._pending_nbytes >= self.shard_nbytes:
            self.flush()

    def flush(self) -> None:
        """Write what `add` has collected as a shard."""
        if self._pending:
            self.add_shard(store_shard(self.storage, shard_bytes(self._pending)))
        self._pending, self._pending_nbytes = {}, 0

    def add_shard(self, entry: ShardEntry) -> None:
        """Add a shard that `write_shard` made; adding it twice is adding it once."""
        self._entries[entry.name] = entry

    def commit(
        self,
        ref: str = "main",
        *,
        expect: str | None = None,
        config: Mapping[str, Any] | None = None,
        dropped: Iterable[Mapping[str, Any]] = (),
        cluster_sizes: Mapping[str, int] | None = None,
        move: MoveRef = move_ref,
    ) -> Snapshot:
        """Publish everything added as a new snapshot and move `ref` to it.

        Complexes of the parent stay where their chains are still there; the others are listed in
        `config["assemblies"]["dropped"]`.

        Args:
            ref: the name to move.
            expect: digest the ref must have now, which becomes the parent; None if
                it must not exist. Committing the same again succeeds.
            config: how the chains were made, kept in the manifest.
            dropped: inputs that gave no chain, each `{"chain_id", "reason", ...}`.
            cluster_sizes: size of each chain's sequence cluster, for sampling.
            move: moves the ref, for whoever has more to say on that than the store.

        Raises:
            RefConflict: the ref moved meanwhile; nothing was published.
            ValueError: a chain is in two shards.
        """
        self.flush()
        reached("shards written, nothing names them")
        entries = sorted(self._entries.values())
        table = canonical([read_part(self.storage, entry) for entry in entries])
        if cluster_sizes is not None:
            table = with_cluster_sizes(table, cluster_sizes)
        settings = dict(config or {})
        kept = self._kept_assemblies(expect, table, settings)
        snapshot = write_snapshot(
            self.storage,
            table,
            {entry.name: entry for entry in (*entries, *(kept.entries if kept else ()))}.values(),
            parent=expect,
            config=settings,
            dropped=tuple(sorted((dict(item) for item in dropped), key=canonical_json)),
            assemblies=kept.files if kept else None,
            num_assemblies=kept.num if kept else 0,
        )
        move(self.storage, ref, snapshot.digest, expect)
        return snapshot

    def _kept_assemblies(
        self, parent: str | None, table: pa.Table, settings: dict[str, Any]
    ) -> KeptAssemblies | None:
        """The parent's complexes, where it has any; tells `settings` which of them are not kept."""
        from evofeed.store.assemblies import kept_assemblies
        from evofeed.store.dataset import Dataset

        try:
            base = Dataset.of(self.storage, parent) if parent else None
        except DatasetMissing:  # moving the ref will say so
            base = None
        if base is None or not base.manifest.assemblies:
            return None
        kept = kept_assemblies(base, table)
        before = base.manifest.config.get("assemblies", {}).get("dropped", [])
        if every := sorted([*before, *kept.dropped], key=canonical_json):
            settings["assemblies"] = {"dropped": every}
        return kept


def with_cluster_sizes(table: pa.Table, sizes: Mapping[str, int]) -> pa.Table:
    """The index with `cluster_size` filled in; -1 for chains without one."""
    values = [int(sizes.get(chain_id, -1)) for chain_id in table["chain_id"].to_pylist()]
    where = table.schema.get_field_index("cluster_size")
    return table.set_column(where, table.schema.field(where), pa.array(values, pa.int32()))


def write_snapshot(
    storage: Storage,
    table: pa.Table,
    entries: Iterable[ShardEntry],
    *,
    parent: str | None,
    config: dict[str, Any],
    dropped: tuple[dict[str, Any], ...] = (),
    assemblies: Mapping[str, bytes] | None = None,
    num_assemblies: int = 0,
) -> Snapshot:
    """Store index and manifest of a snapshot; no ref moves.

    Args:
        storage: of the dataset.
        table: the index of its chains.
        entries: every shard that holds some of them, or of what belongs to assemblies.
        parent: digest of the snapshot it was made from.
        config: how the chains were made.
        dropped: inputs that gave no chain.
        assemblies: files that tell of its complexes, by name.
        num_assemblies: how many there are.
    """
    index = index_bytes(table)
    more = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "nbytes": len(data)}
        for name, data in (assemblies or {}).items()
    }
    manifest = Manifest(
        shards=tuple(sorted(entries)),
        index_sha256=hashlib.sha256(index).hexdigest(),
        index_nbytes=len(index),
        num_chains=table.num_rows,
        parent=parent,
        config=config,
        dropped=dropped,
        assemblies={"num": num_assemblies, "files": more} if more else None,
    )
    folder = f"snapshots/{manifest.digest}"
    if _is_there(storage, folder, manifest):  # written again, its files would look newer
        return Snapshot(manifest.digest, manifest)
    reached("index made, not written")
    for name, data in (assemblies or {}).items():
        storage.put(f"{folder}/{name}", data)
    storage.put(f"{folder}/index.arrow", index)
    reached("index written, no manifest")
    storage.put(f"{folder}/manifest.json", manifest.to_bytes())  # last: it marks completeness
    reached("manifest written, ref not moved")
    return Snapshot(manifest.digest, manifest)


def _is_there(storage: Storage, folder: str, manifest: Manifest) -> bool:
    """True if the snapshot was written before: its manifest came last."""
    try:
        index = storage.read(f"{folder}/index.arrow")
        more = {name: storage.read(f"{folder}/{name}") for name in manifest.more_files}
        files = manifest.assemblies["files"] if manifest.assemblies else {}
        return (
            all(hashlib.sha256(more[name]).hexdigest() == files[name]["sha256"] for name in more)
            and storage.read(f"{folder}/manifest.json") == manifest.to_bytes()
            and hashlib.sha256(index).hexdigest() == manifest.index_sha256
        )
    except ShardMissing:
        return False

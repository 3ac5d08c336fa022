"""Building a snapshot: shards in, one atomic commit out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from evofeed.base.errors import DatasetMissing, ShardCorrupt, ShardMissing
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.encode import encode_record
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical, index_bytes
from evofeed.store.layout import PackedColumn
from evofeed.store.manifest import NO_PART, Manifest, Part, ShardEntry, canonical_json, check_name
from evofeed.store.opening import open_storage
from evofeed.store.refs import move_ref
from evofeed.store.shard import read_part, shard_bytes, store_shard
from evofeed.store.storage import Storage

if TYPE_CHECKING:
    from evofeed.store.dataset import Dataset

MoveRef = Callable[[Storage, str, str, str | None], object]
"""Moves a ref to a digest if it is at the expected one, as `evofeed.store.refs.move_ref` does."""

SHARD_NBYTES = 256 << 20
"""Where `DatasetWriter.add` starts a new shard: about 600 chains, one S3 upload."""


class ShardFiller:
    """Columns of chains in, a shard out whenever enough have come together."""

    def __init__(self, storage: Storage, shard_nbytes: int) -> None:
        self.storage, self.shard_nbytes = storage, shard_nbytes
        self.entries: dict[str, ShardEntry] = {}
        """The shards written, by name."""
        self.pending: dict[str, dict[str, PackedColumn]] = {}
        self._nbytes = 0

    def put(self, chain_id: str, columns: dict[str, PackedColumn]) -> None:
        """Add one chain, encoded."""
        self.pending[chain_id] = columns
        self._nbytes += sum(len(column.payload) for column in columns.values())
        if self._nbytes >= self.shard_nbytes:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a shard."""
        if self.pending:
            entry = store_shard(self.storage, shard_bytes(self.pending))
            self.entries[entry.name] = entry
        self.pending, self._nbytes = {}, 0


class DatasetWriter(ShardFiller):
    """Collects shards and publishes them as one snapshot.

    Records given to `add` are encoded at once and written when a shard is full;
    shards written elsewhere come in by `add_shard`. Nothing is visible to any
    reader before `commit`. `zstd` makes shards about half as large for cold storage, and several
    times as dear to read.
    """

    def __init__(self, uri: str, *, shard_nbytes: int = SHARD_NBYTES, zstd: bool = False) -> None:
        super().__init__(open_storage(uri), shard_nbytes)
        self.zstd = zstd

    def add(self, record: ChainRecord) -> None:
        """Add one chain; writes a shard whenever enough have come together."""
        if check_name(record.chain_id, "chain id") in self.pending:
            raise ValueError(f"chain {record.chain_id} was added before")
        self.put(record.chain_id, encode_record(record, zstd=self.zstd))

    def add_shard(self, entry: ShardEntry) -> None:
        """Add a shard that `write_shard` made; adding it twice is adding it once."""
        self.entries[entry.name] = entry

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
        `config["assemblies"]["dropped"]`. Its entries stay.

        Args:
            expect: digest the ref must have now, which becomes the parent; None if
                it must not exist. Committing the same again succeeds.
            config: how the chains were made, kept in the manifest.
            dropped: inputs that gave no chain, each `{"chain_id", "reason", ...}`.
            cluster_sizes: size of each chain's sequence cluster, for sampling.
            move: moves the ref, for whoever has more to say on that than the store.

        The same chains once more, made the same way, are the snapshot that is there.

        Raises:
            RefConflict: the ref moved meanwhile; nothing was published.
            ShardCorrupt: the parent is damaged; where it is what is published here, made of a
                snapshot that is there or of none, it is written again instead.
            ValueError: a chain is in two shards.
        """
        self.flush()
        entries = sorted(self.entries.values())
        table = canonical([read_part(self.storage, entry) for entry in entries])
        if cluster_sizes is not None:
            table = with_cluster_sizes(table, cluster_sizes)
        settings, damage = dict(config or {}), None
        try:
            base = parent_of(self.storage, expect)
        except ShardCorrupt as error:
            base, damage = None, error
        complexes = _kept_assemblies(base, table, settings)
        if base is not None and base.manifest.entries:
            settings["entries"] = base.manifest.config.get("entries", {})
        snapshot = write_snapshot(
            self.storage,
            table,
            entries,
            base=base,
            parent=expect,
            config=settings,
            dropped=tuple(sorted((dict(item) for item in dropped), key=canonical_json)),
            assemblies=complexes,
            damage=damage,
        )
        move(self.storage, ref, snapshot.digest, expect)
        return snapshot


def parent_of(storage: Storage, digest: str | None) -> Dataset | None:
    """The snapshot that the next one is made from; None if it is the first."""
    from evofeed.store.dataset import Dataset

    try:
        return Dataset.of(storage, digest) if digest else None
    except DatasetMissing:  # moving the ref will say so
        return None


def _part_of(base: Dataset | None, kind: str) -> Part:
    """The complexes, or entries, of a snapshot as they are."""
    if base is None or (about := getattr(base.manifest, kind)) is None:
        return NO_PART
    rows = base.assemblies.member_index if kind == "assemblies" else base.entries.records
    names = set(rows["shard"].unique().to_pylist())
    return Part(
        {name: base.snapshot_file(name)[0] for name in about["files"]},
        int(about["num"]),
        tuple(entry for entry in base.manifest.shards if entry.name in names),
    )


def _kept_assemblies(base: Dataset | None, table: pa.Table, settings: dict[str, Any]) -> Part:
    """The parent's complexes, where it has any; tells `settings` which of them are not kept."""
    from evofeed.store.assemblies import kept_assemblies

    if base is None or not base.manifest.assemblies:
        return NO_PART
    kept, dropped = kept_assemblies(base, table)
    before = base.manifest.config.get("assemblies", {}).get("dropped", [])
    if every := sorted([*before, *dropped], key=canonical_json):
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
    shards: Iterable[ShardEntry],
    *,
    base: Dataset | None = None,
    parent: str | None = None,
    config: dict[str, Any] | None = None,
    dropped: tuple[dict[str, Any], ...] | None = None,
    assemblies: Part | None = None,
    entries: Part | None = None,
    damage: ShardCorrupt | None = None,
) -> Snapshot:
    """Store index and manifest of a snapshot; no ref moves.

    Args:
        shards: what its chains may lie in; those that the index names are kept.
        base: the snapshot it is made from, whose settings, dropped inputs, complexes and entries
            it has where others are not given.
        parent: digest of `base`, if that is not there any more.
        config, dropped: as in `Manifest`.
        assemblies, entries: its complexes and entries.
        damage: of `parent`, raised unless that is this snapshot.
    """
    assemblies = _part_of(base, "assemblies") if assemblies is None else assemblies
    entries = _part_of(base, "entries") if entries is None else entries
    before = base.manifest if base is not None else None
    if before:
        config = before.config if config is None else config
        dropped = before.dropped if dropped is None else dropped
    index, live = index_bytes(table), set(table["shard"].unique().to_pylist())
    chains = (shard for shard in shards if shard.name in live)
    manifest = Manifest(
        shards=tuple(sorted({*chains, *assemblies.shards, *entries.shards})),
        index_sha256=hashlib.sha256(index).hexdigest(),
        index_nbytes=len(index),
        num_chains=table.num_rows,
        parent=parent if base is None else base.digest,
        config=config or {},
        dropped=dropped or (),
        assemblies=assemblies.to_dict(),
        entries=entries.to_dict(),
    )
    if base is not None and replace(manifest, parent=base.manifest.parent).digest == base.digest:
        return Snapshot(base.digest, base.manifest)
    if damage is not None:
        there = {item.key.split("/")[1] for item in storage.files("snapshots/")}
        again = [replace(manifest, parent=one) for one in (None, *there)]
        if not (again := [one for one in again if one.digest == parent]):
            raise damage
        manifest = again[0]
    folder = f"snapshots/{manifest.digest}"
    if _is_there(storage, folder, manifest):  # written again, its files would look newer
        return Snapshot(manifest.digest, manifest)
    for name, data in (*assemblies.files.items(), *entries.files.items()):
        storage.put(f"{folder}/{name}", data)
    storage.put(f"{folder}/index.arrow", index)
    storage.put(f"{folder}/manifest.json", manifest.to_bytes())  # last: it marks completeness
    return Snapshot(manifest.digest, manifest)


def _is_there(storage: Storage, folder: str, manifest: Manifest) -> bool:
    """True if the snapshot was written before: its manifest came last."""
    try:
        index = storage.read(f"{folder}/index.arrow")
        more = {name: storage.read(f"{folder}/{name}") for name in manifest.more_files}
        files = manifest.file_table
        return (
            all(hashlib.sha256(more[name]).hexdigest() == files[name]["sha256"] for name in more)
            and storage.read(f"{folder}/manifest.json") == manifest.to_bytes()
            and hashlib.sha256(index).hexdigest() == manifest.index_sha256
        )
    except ShardMissing:
        return False

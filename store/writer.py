"""Writing a snapshot: shards, and one atomic commit of them."""

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
"""Size at which `DatasetWriter.add` starts a new shard: about 600 chains, one S3 upload."""


class ShardFiller:
    """Collects encoded chains and writes a shard whenever they reach `shard_nbytes`."""

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
        """Write the pending chains as a shard."""
        if self.pending:
            entry = store_shard(self.storage, shard_bytes(self.pending))
            self.entries[entry.name] = entry
        self.pending, self._nbytes = {}, 0


class DatasetWriter(ShardFiller):
    """Collects shards and publishes them as one snapshot.

    Records of `add` are encoded at once and written when a shard is full; `add_shard` takes
    shards written elsewhere. Readers see nothing before `commit`. `zstd` makes shards about half
    as large for cold storage, and several times as slow to read.
    """

    def __init__(self, uri: str, *, shard_nbytes: int = SHARD_NBYTES, zstd: bool = False) -> None:
        super().__init__(open_storage(uri), shard_nbytes)
        self.zstd = zstd

    def add(self, record: ChainRecord) -> None:
        """Add one chain; writes a shard when one is full."""
        if check_name(record.chain_id, "chain id") in self.pending:
            raise ValueError(f"chain {record.chain_id} was added before")
        self.put(record.chain_id, encode_record(record, zstd=self.zstd))

    def add_shard(self, entry: ShardEntry) -> None:
        """Add a shard of `write_shard`; adding it again changes nothing."""
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

        Complexes of the parent stay if their chains are in the new snapshot; the others are listed
        in `config["assemblies"]["dropped"]`. Its entries stay. The same chains, made the same way,
        give the snapshot that exists already.

        Args:
            expect: digest the ref must have now, which becomes the parent; None if
                it must not exist. Committing the same again succeeds.
            config: how the chains were made, stored in the manifest.
            dropped: inputs that gave no chain, each `{"chain_id", "reason", ...}`.
            cluster_sizes: size of each chain's sequence cluster, for sampling.
            move: moves the ref, in place of the store's own `move_ref`.

        Raises:
            RefConflict: the ref moved meanwhile; nothing was published.
            ShardCorrupt: the parent is damaged, unless it is the snapshot of this commit, whose own
                parent exists or which has none: that one is written again.
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
        complexes = _valid_assemblies(base, table, settings)
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
    """The snapshot of a digest, which is the parent of the next; None for the first snapshot."""
    from evofeed.store.dataset import Dataset

    try:
        return Dataset.of(storage, digest) if digest else None
    except DatasetMissing:  # moving the ref raises the error
        return None


def _part_of(base: Dataset | None, kind: str) -> Part:
    """The complexes, or entries, of a snapshot, unchanged."""
    if base is None or (described := getattr(base.manifest, kind)) is None:
        return NO_PART
    rows = base.assemblies.member_index if kind == "assemblies" else base.entries.records
    names = set(rows["shard"].unique().to_pylist())
    return Part(
        {name: base.snapshot_file(name)[0] for name in described["files"]},
        int(described["num"]),
        tuple(entry for entry in base.manifest.shards if entry.name in names),
    )


def _valid_assemblies(base: Dataset | None, table: pa.Table, settings: dict[str, Any]) -> Part:
    """The parent's complexes that are still valid; adds the others to `settings`."""
    from evofeed.store.assemblies import valid_assemblies

    if base is None or not base.manifest.assemblies:
        return NO_PART
    part, dropped = valid_assemblies(base, table)
    before = base.manifest.config.get("assemblies", {}).get("dropped", [])
    if all_dropped := sorted([*before, *dropped], key=canonical_json):
        settings["assemblies"] = {"dropped": all_dropped}
    return part


def with_cluster_sizes(table: pa.Table, sizes: Mapping[str, int]) -> pa.Table:
    """The index with `cluster_size` filled in; -1 for chains without one."""
    values = [int(sizes.get(chain_id, -1)) for chain_id in table["chain_id"].to_pylist()]
    column = table.schema.get_field_index("cluster_size")
    return table.set_column(column, table.schema.field(column), pa.array(values, pa.int32()))


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
        shards: shards of its chains; those that the index does not name are left out.
        base: its parent; gives the config, dropped inputs, complexes and entries that are None.
        parent: digest of `base`, if that cannot be read.
        config, dropped: as in `Manifest`.
        assemblies, entries: its complexes and entries.
        damage: error of reading `parent`, raised unless that is this snapshot.
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
        digests = {item.key.split("/")[1] for item in storage.files("snapshots/")}
        candidates = (replace(manifest, parent=digest) for digest in (None, *digests))
        same = next((m for m in candidates if m.digest == parent), None)
        if same is None:
            raise damage
        manifest = same
    folder = f"snapshots/{manifest.digest}"
    if _is_stored(storage, folder, manifest):  # written again, its files would look newer
        return Snapshot(manifest.digest, manifest)
    for name, data in (*assemblies.files.items(), *entries.files.items()):
        storage.put(f"{folder}/{name}", data)
    storage.put(f"{folder}/index.arrow", index)
    storage.put(f"{folder}/manifest.json", manifest.to_bytes())  # last: it marks completeness
    return Snapshot(manifest.digest, manifest)


def _is_stored(storage: Storage, folder: str, manifest: Manifest) -> bool:
    """True if all files of the snapshot are stored, undamaged."""

    def digest(name: str) -> str:
        return hashlib.sha256(storage.read(f"{folder}/{name}")).hexdigest()

    try:
        return (
            all(digest(name) == file["sha256"] for name, file in manifest.file_table.items())
            and storage.read(f"{folder}/manifest.json") == manifest.to_bytes()
            and digest("index.arrow") == manifest.index_sha256
        )
    except ShardMissing:
        return False

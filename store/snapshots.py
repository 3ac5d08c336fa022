"""New snapshots from existing ones: add entries, remove chains, merge, compact, tag, copy.

Each function that changes one opens the snapshot of a ref, writes a child of it, and moves the ref
by compare-and-swap; if another process moved the ref meanwhile, it raises `RefConflict` and
nothing has changed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.counts import ReportDone
from evofeed.base.errors import ShardCorrupt
from evofeed.store.dataset import Dataset
from evofeed.store.entries import entry_files
from evofeed.store.entry_shards import read_record_rows, records_table
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical
from evofeed.store.manifest import Part, ShardEntry, canonical_json
from evofeed.store.opening import open_storage
from evofeed.store.refs import Ref, move_ref
from evofeed.store.shard import read_part, shard_bytes, shard_key, store_shard
from evofeed.store.spans import Spans
from evofeed.store.storage import LocalStorage, Storage
from evofeed.store.writer import SHARD_NBYTES, parent_of, with_cluster_sizes, write_snapshot


def remove_chains(uri: str, chain_ids: Iterable[str], *, ref: str = "main") -> Snapshot:
    """The snapshot without some chains. Their bytes go when `compact` and `gc` have run.

    Raises:
        KeyError: a chain is not in the snapshot.
    """

    def change(base: Dataset) -> tuple[pa.Table, list[ShardEntry]]:
        removed = list(chain_ids)
        for chain_id in removed:
            base.row(chain_id)  # raises KeyError if it is not in the snapshot
        left_out = pc.is_in(base.index["chain_id"], value_set=pa.array(removed, pa.utf8()))
        return canonical([base.index.filter(pc.invert(left_out))]), []

    return _amend(uri, ref, change)


def merge(
    uri: str, other: str, *, ref: str = "main", progress: ReportDone | None = None
) -> Snapshot:
    """The snapshot with all chains of another dataset, whose shards are copied.

    A chain that both have with the same bytes is in it once. `progress` is called with the
    bytes copied so far, and of all shards.

    Raises:
        ValueError: a chain is in both and differs; names it.
    """
    source = Dataset.open(other)
    for kind, part in (("assemblies", source.assemblies), ("entries", source.entries)):
        if len(part):
            raise ValueError(f"the other dataset has {kind}: merge into it, or add them here again")

    def change(base: Dataset) -> tuple[pa.Table, list[ShardEntry]]:
        diff = base.diff_with(source)
        if diff.changed:
            raise ValueError(f"chains differ: {', '.join(diff.changed[:5])}: remove one side first")
        _copy_shards(source, base.storage, progress)
        added = pc.is_in(source.index["chain_id"], value_set=pa.array(diff.added, pa.utf8()))
        return canonical([base.index, source.index.filter(added)]), list(source.manifest.shards)

    return _amend(uri, ref, change)


def compact(uri: str, *, ref: str = "main") -> Snapshot:
    """The snapshot with small shards, and shards mostly of removed chains, rewritten.

    Columns are copied packed, bit for bit; only shards whose live chains take less than half
    of `SHARD_NBYTES` are rewritten.
    """

    def change(base: Dataset) -> tuple[pa.Table, list[ShardEntry]]:
        shards = base.index.group_by("shard").aggregate([("nbytes", "sum"), ("nbytes", "count")])
        names = shards.filter(pc.less(shards["nbytes_sum"], SHARD_NBYTES / 2))
        sparse = names["shard"].to_pylist()
        num_stored = sum(shard.chains for shard in base.manifest.shards if shard.name in sparse)
        if len(sparse) < 2 and num_stored == (pc.sum(names["nbytes_count"]).as_py() or 0):
            return base.index, []
        rewritten = pc.is_in(base.index["shard"], value_set=pa.array(sparse, pa.utf8()))
        sizes = dict(zip(base, base.index["cluster_size"].to_pylist(), strict=True))
        small = base.index.filter(rewritten)
        entries = [
            join_chains(base.storage, small.take(pa.array(group, pa.int64())))
            for group in groups_of(small["nbytes"].to_pylist(), SHARD_NBYTES)
        ]
        parts = [with_cluster_sizes(read_part(base.storage, entry), sizes) for entry in entries]
        return canonical([base.index.filter(pc.invert(rewritten)), *parts]), entries

    return _amend(uri, ref, change)


def add_entries(
    uri: str,
    shards: Iterable[ShardEntry],
    *,
    ref: str = "main",
    expect: str | None = None,
    clusters: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    dropped: Iterable[Mapping[str, Any]] = (),
) -> Snapshot:
    """Replaces the entries of the snapshot by the records of these shards, and moves `ref`.

    Chains and complexes stay as they are. Adding the same again gives the same snapshot.

    Args:
        shards: of `write_records`: entries, their alignments, molecules and components.
        expect: digest the ref must have now, which becomes the parent; None if it must not exist.
        clusters: cluster of a polymer by `ENTRY_entity` or by sequence, for weights.
        config: how the entries were made, stored in the manifest.
        dropped: entries that could not be made, each `{"entry", "reason", ...}`.

    Raises:
        RefConflict: the ref moved meanwhile; nothing is published.
        ValueError: a record is in two shards.
    """
    storage = open_storage(uri)
    entries = {entry.name: entry for entry in shards}
    rows = [row for entry in entries.values() for row in read_record_rows(storage, entry)]
    table = records_table(rows)
    base = parent_of(storage, expect)
    manifest = base.manifest if base is not None else None
    settings = {k: v for k, v in (manifest.config if manifest else {}).items() if k != "entries"}
    left_out = sorted((dict(item) for item in dropped), key=canonical_json)
    settings["entries"] = {**dict(config or {}), **({"dropped": left_out} if left_out else {})}
    files = entry_files(table.to_pylist(), clusters or {}) if rows else {}
    snapshot = write_snapshot(
        storage,
        canonical([]) if base is None else base.index,
        manifest.shards if manifest else (),
        base=base,
        parent=expect,
        config=settings,
        entries=Part(files, sum(row["kind"] == "entry" for row in rows), tuple(entries.values())),
    )
    move_ref(storage, ref, snapshot.digest, expect)
    return snapshot


def tag(uri: str, name: str, snapshot: str = "main") -> Ref:
    """A new ref at a snapshot; an existing ref is not moved.

    Raises:
        RefConflict: the ref exists and points at another snapshot.
    """
    dataset = Dataset.open(uri, snapshot)
    return move_ref(dataset.storage, name, dataset.digest, None)


Change = Callable[[Dataset], tuple[pa.Table, list[ShardEntry]]]


def _amend(uri: str, ref: str, change: Change) -> Snapshot:
    base = Dataset.open(uri, ref)
    table, entries = change(base)
    _check_assemblies(base, table)
    if table.equals(base.index):
        return Snapshot(base.digest, base.manifest)
    snapshot = write_snapshot(base.storage, table, (*base.manifest.shards, *entries), base=base)
    move_ref(base.storage, ref, snapshot.digest, base.digest)
    return snapshot


def _check_assemblies(base: Dataset, table: pa.Table) -> None:
    """Refuses an index without a chain that a complex has (raises ValueError)."""
    assemblies, present = base.assemblies.table, set(table["chain_id"].to_pylist())
    names = assemblies["assembly_id"].to_pylist()
    for name, chains in zip(names, assemblies["chain_ids"].to_pylist(), strict=True):
        if missing := [chain for chain in chains if chain not in present]:
            raise ValueError(
                f"chain {missing[0]} belongs to assembly {name}: add the assemblies again without "
                "it first"
            )


def copy_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    snapshot: str = "main",
    ref: str = "main",
    expect: str | None = None,
    token: str | None = None,
    progress: ReportDone | None = None,
) -> Snapshot:
    """Copy a snapshot between folders, buckets and services; its digest stays.

    Args:
        target: a folder or bucket; shards that it has already are not fetched again.
        ref: name to move at the target, which must be at `expect`.
        expect: digest the ref must have at the target now; None if it must not exist.
        progress: called with the bytes copied so far, and of all shards.

    Raises:
        ShardCorrupt: a shard's bytes do not match the manifest.
        RefConflict: `ref` is at another snapshot.
    """
    dataset, storage = Dataset.open(source, snapshot, token=token), open_storage(target)
    _copy_shards(dataset, storage, progress)
    folder = f"snapshots/{dataset.digest}"
    for name in ("index.arrow", *dataset.manifest.more_files):
        storage.put(f"{folder}/{name}", dataset.storage.read(f"{folder}/{name}"))
    storage.put(f"{folder}/manifest.json", dataset.manifest.to_bytes())
    move_ref(storage, ref, dataset.digest, expect)
    return Snapshot(dataset.digest, dataset.manifest)


def _copy_shards(dataset: Dataset, storage: Storage, progress: ReportDone | None) -> None:
    """Fetch the shards of a snapshot that a storage lacks, or has damaged if it is a folder (raises
    ShardCorrupt)."""
    stored = {item.key: item.nbytes for item in storage.files("shards/")}
    shards = dataset.manifest.shards
    done, total = 0, sum(entry.nbytes for entry in shards)
    for entry in shards:
        key = shard_key(entry.name)
        is_stored = stored.get(key) == entry.nbytes and (
            not isinstance(storage, LocalStorage)
            or hashlib.sha256(storage.read(key)).hexdigest() == entry.sha256
        )
        if not is_stored:
            data = dataset.storage.read(key)
            if hashlib.sha256(data).hexdigest() != entry.sha256:
                raise ShardCorrupt("sha256 does not match", path=f"{dataset.uri}/{key}")
            storage.put(key, data)
        done += entry.nbytes
        if progress:
            progress(done, total)


def join_chains(storage: Storage, rows: pa.Table) -> ShardEntry:
    """Write one shard of the chains in these rows of an index.

    Its bytes depend on the chains alone, not on the shards they came from. All chains are in
    memory while it is written. Columns are copied packed.

    Raises:
        ShardCorrupt, ShardMissing: a chain's bytes are wrong or missing.
        ValueError: a chain is in two rows.
    """
    spans = Spans(storage, canonical([rows]))
    packed = {spans.chain_id(row): spans.decoder(row).columns for row in range(len(spans))}
    return store_shard(storage, shard_bytes(packed))


def groups_of(sizes: Iterable[int], nbytes: int) -> Iterator[list[int]]:
    """Numbers of consecutive items that together reach `nbytes`; the last may be smaller."""
    group: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        group.append(number)
        total += size
        if total >= nbytes:
            yield group
            group, total = [], 0
    if group:
        yield group

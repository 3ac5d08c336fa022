"""Adding entries to a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from evofeed.store.entries import entry_files
from evofeed.store.entry_shards import read_record_rows, records_table
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical
from evofeed.store.manifest import Part, ShardEntry, canonical_json
from evofeed.store.opening import open_storage
from evofeed.store.refs import move_ref
from evofeed.store.writer import MoveRef, assemblies_of, parent_of, write_snapshot


def add_entries(
    uri: str,
    shards: Iterable[ShardEntry],
    *,
    ref: str = "main",
    expect: str | None = None,
    clusters: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    dropped: Iterable[Mapping[str, Any]] = (),
    move: MoveRef = move_ref,
) -> Snapshot:
    """The snapshot with the records of these shards in place of the entries it had; moves `ref`.

    Chains and complexes stay as they are. Adding the same again gives the same snapshot.

    Args:
        uri: the dataset.
        shards: of `write_records`: entries, their alignments, molecules and components.
        ref: name to move.
        expect: digest the ref must have now, which becomes the parent; None if it must not exist.
        clusters: cluster of a polymer by `ENTRY_entity` or by sequence, for weights.
        config: how the entries were made, kept in the manifest.
        dropped: entries that could not be made, each `{"entry", "reason", ...}`.
        move: moves the ref.

    Raises:
        RefConflict: the ref moved meanwhile; nothing is published.
        ValueError: a record is in two shards.
    """
    storage = open_storage(uri)
    entries = {entry.name: entry for entry in shards}
    rows = [row for entry in entries.values() for row in read_record_rows(storage, entry)]
    table = records_table(rows)
    base = parent_of(storage, expect)
    manifest = base.manifest if base else None
    settings = {k: v for k, v in (manifest.config if manifest else {}).items() if k != "entries"}
    left_out = sorted((dict(one) for one in dropped), key=canonical_json)
    settings["entries"] = {**dict(config or {}), **({"dropped": left_out} if left_out else {})}
    complexes, chains = assemblies_of(base), base.index if base else canonical([])
    live = set(chains["shard"].unique().to_pylist())
    before = [entry for entry in manifest.shards if entry.name in live] if manifest else []
    files = entry_files(table.to_pylist(), clusters or {}) if rows else {}
    snapshot = write_snapshot(
        storage,
        chains,
        {one.name: one for one in (*before, *complexes.shards, *entries.values())}.values(),
        parent=expect,
        config=settings,
        dropped=manifest.dropped if manifest else (),
        assemblies=complexes,
        whole_entries=Part(files, sum(row["kind"] == "entry" for row in rows)),
    )
    move(storage, ref, snapshot.digest, expect)
    return snapshot

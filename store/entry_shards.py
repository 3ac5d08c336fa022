"""Shards of records other than chains: entries, alignments, molecules, components.

They are written, named, checked and read like shards of chains; a row of their table holds the
record's kind. FORMAT.md defines the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evofeed.base.errors import ShardCorrupt
from evofeed.base.files import parse_json
from evofeed.protein.datapoints import alignment_names, describe_section
from evofeed.store.decode import Origin
from evofeed.store.entry_codecs import DECODERS, PROJECTS, decode_section
from evofeed.store.index import TEXT, table_schema
from evofeed.store.layout import ENTRIES_VERSION, PackedColumn
from evofeed.store.manifest import ShardEntry, canonical_json, check_name
from evofeed.store.opening import open_storage
from evofeed.store.shard import part_of, read_records, shard_bytes, shard_kind, store_shard
from evofeed.store.storage import Storage

RECORD_FIELDS: Final = (
    ("kind", TEXT),
    ("record_id", pa.utf8()),
    ("shard", TEXT),
    ("offset", pa.int64()),
    ("nbytes", pa.int64()),
    ("checksum", pa.uint64()),
    ("column_offsets", pa.list_(pa.uint32())),
    ("facts", pa.utf8()),
)
"""Rows are sorted by kind and id. `facts`: the record's values for other tables, JSON."""
RECORDS_SCHEMA: Final = table_schema("records", RECORD_FIELDS, ENTRIES_VERSION)


def write_records(
    uri: str, kind: str, encoded: Mapping[str, Mapping[str, PackedColumn]]
) -> ShardEntry:
    """Write one shard of records of a kind; the bytes are a pure function of them.

    Raises:
        ValueError: no record, or an id that is not a safe name.
        StoreError: no room, or the dataset cannot be written.
    """
    if not encoded:
        raise ValueError("a shard needs at least one record")
    for record_id in encoded:
        check_name(record_id, "record id")
    data, storage = shard_bytes(encoded, kind), open_storage(uri)
    return store_shard(storage, data, record_rows)


def record_rows(data: pa.Buffer, name: str, path: str) -> pa.Table:
    """Rows of a shard's records, from its bytes alone: decodes and checks everything.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a valid shard of such records.
    """
    kind = shard_kind(data, path)
    if kind not in DECODERS:
        raise ShardCorrupt(f"a shard of {kind}s among the records", path=path)
    rows = [
        {
            "kind": kind,
            "record_id": origin.chain_id,
            "shard": name,
            **span,
            "facts": canonical_json(_facts(kind, columns, origin)).decode(),
        }
        for origin, columns, span in read_records(data, path, kind)
    ]
    return records_table(rows)


def _facts(kind: str, columns: Mapping[str, PackedColumn], origin: Origin) -> dict[str, Any]:
    """A record's values for tables; decodes all of it."""
    value = decoded(kind, columns, origin)
    if kind == "alignment":
        rows, length = len(value.row_letters), value.num_columns
        return {"num_rows": rows, "num_columns": length, "distinct": len(value.letters)}
    if kind != "entry":
        return {"num": len(value)}
    with origin.decoding("the entry is not valid"):
        decoded_sections = {name: decode_section(columns, name, value) for name in PROJECTS}
        sections = {name: s for name, s in decoded_sections.items() if s is not None}
        names = {name for s in sections.values() for name in alignment_names(value, s).values()}
        resolution = value.resolution()
        return {
            "entry": value.entry,
            "assembly": value.assembly,
            "deposit_date": value.deposit_date,
            "release_dates": list(value.release_dates),
            "resolution": None if np.isnan(resolution) else resolution,
            "methods": list(value.methods),
            "num_atoms": value.num_atoms,
            "num_residues": value.num_residues,
            "alignments": sorted(names),
            "projects": {name: describe_section(value, s) for name, s in sections.items()},
        }


def decoded(kind: str, columns: Mapping[str, PackedColumn], origin: Origin) -> Any:
    """The value of a record's columns.

    Raises:
        ShardCorrupt: the bytes are not those of that kind; names shard and record.
    """
    with origin.decoding(f"the {kind} is not valid"):
        return DECODERS[kind](columns)


def records_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The table of these rows, sorted; the same rows give the same bytes.

    Raises:
        ValueError: a record is in two rows.
    """
    order = sorted(rows, key=lambda row: (row["kind"], row["record_id"]))
    keys = [(row["kind"], row["record_id"]) for row in order]
    for key, following in itertools.pairwise(keys):
        if key == following:
            raise ValueError(f"{key[0]} {key[1]} is in two rows")
    return pa.Table.from_pylist(order, schema=RECORDS_SCHEMA).combine_chunks()


def read_record_rows(storage: Storage, entry: ShardEntry) -> list[dict[str, Any]]:
    """Rows of a shard: from its part, or from the shard itself if that is missing."""
    table = part_of(storage, entry, "records", RECORDS_SCHEMA, record_rows)
    return list(table.to_pylist())


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a row."""
    facts: dict[str, Any] = parse_json(row["facts"])
    return facts

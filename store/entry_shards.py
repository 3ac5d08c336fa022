"""Shards of records that are no chains: entries, alignments, molecules, components.

They are written, named, checked and read as shards of chains are; a row of their table says of
what kind a record is. FORMAT.md says the bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.base.errors import ShardCorrupt, ShardMissing
from evofeed.protein.datapoints import alignment_names, describe_section
from evofeed.store.decode import Place
from evofeed.store.entry_codecs import DECODERS, PROJECTS, decode_section
from evofeed.store.index import TEXT, index_bytes, read_table, table_schema
from evofeed.store.layout import (
    ENTRIES_VERSION,
    HEADER_NBYTES,
    KINDS,
    PackedColumn,
    arrow_schema,
    pack_column,
    unpack_column,
)
from evofeed.store.manifest import NAME, ShardEntry, canonical_json, check_name
from evofeed.store.opening import open_storage
from evofeed.store.shard import (
    END_OF_STREAM,
    MESSAGE,
    cell_of,
    part_key,
    read_batches,
    schema_end,
    shard_key,
    shard_kind,
)
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
"""Rows are sorted by kind and id. `facts`: what tables say of the record, JSON."""


def records_schema() -> pa.Schema:
    """Schema of the table of records."""
    return table_schema("records", RECORD_FIELDS, ENTRIES_VERSION)


def write_records(
    uri: str, kind: str, encoded: Mapping[str, Mapping[str, PackedColumn]]
) -> ShardEntry:
    """Write one shard of records of a kind; the bytes are a pure function of them.

    Raises:
        ValueError: no record, or an id that is no safe name.
        StoreError: no room, or the place cannot be written.
    """
    if not encoded:
        raise ValueError("a shard needs at least one record")
    schema, sink = arrow_schema(kind), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for record_id in sorted(encoded):
            check_name(record_id, "record id")
            cells = [pack_column(record_id, name, encoded[record_id][name]) for name in KINDS[kind]]
            arrays = [pa.array([record_id], pa.large_utf8())]
            arrays += [pa.array([cell], pa.large_binary()) for cell in cells]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    data, storage = sink.getvalue(), open_storage(uri)
    digest = hashlib.sha256(memoryview(data)).hexdigest()
    table = record_rows(data, f"{digest}.arrow", storage.uri)
    part = index_bytes(table)
    storage.put(part_key(f"{digest}.arrow"), hashlib.sha256(part).digest() + part)
    storage.put(shard_key(f"{digest}.arrow"), memoryview(data).cast("B"))
    return ShardEntry(f"{digest}.arrow", digest, data.size, table.num_rows)


def record_rows(data: pa.Buffer, name: str, path: str) -> pa.Table:
    """Rows of a shard's records, made from its bytes alone: decodes and checks everything.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a sound shard of such records.
    """
    kind = shard_kind(data, path)
    if kind not in DECODERS:
        raise ShardCorrupt(f"a shard of {kind}s among the records", path=path)
    rows: list[dict[str, Any]] = []
    end = schema_end(memoryview(data))
    for batch in read_batches(data, path, kind):
        row = _row(data, batch, kind, end, path)
        end = row["offset"] + row["nbytes"]
        rows.append(row | {"shard": name})
    if not rows or bytes(memoryview(data)[end : end + 8]) != END_OF_STREAM:
        raise ShardCorrupt("records are missing at its end", path=path)
    return records_table(rows)


def _row(
    data: pa.Buffer, batch: pa.RecordBatch, kind: str, offset: int, path: str
) -> dict[str, Any]:
    record_id = str(batch.column(0)[0].as_py())
    place = Place(record_id, path)
    if bytes(memoryview(data)[offset : offset + 4]) != MESSAGE:
        raise place.corrupt(f"no Arrow message begins at byte {offset}")
    if not NAME.fullmatch(record_id):
        raise place.corrupt("this is no record id")
    starts, columns, stop = [], {}, offset
    for name in KINDS[kind]:
        cell = cell_of(batch.column(name))
        column = unpack_column(memoryview(cell), record_id, name, path)
        start = cell.address - data.address
        if start < stop:
            raise place.corrupt(f"column {name} does not lie behind the one before")
        starts.append(start)
        columns[name] = column
        stop = start + HEADER_NBYTES + len(column.payload)
    stop += -stop % 8
    if stop > data.size:
        raise place.corrupt("the file ends within it")
    return {
        "kind": kind,
        "record_id": record_id,
        "offset": offset,
        "nbytes": stop - offset,
        "checksum": xxhash.xxh3_64_intdigest(memoryview(data)[offset:stop]),
        "column_offsets": [start - offset for start in (*starts, stop)],
        "facts": canonical_json(_facts(kind, columns, place)).decode(),
    }


def _facts(kind: str, columns: Mapping[str, PackedColumn], place: Place) -> dict[str, Any]:
    """What tables say of a record; decodes all of it on the way."""
    value = decoded(kind, columns, place)
    if kind == "alignment":
        rows, length = len(value.row_letters), value.num_columns
        return {"num_rows": rows, "num_columns": length, "distinct": len(value.letters)}
    if kind != "entry":
        return {"num": len(value)}
    try:
        sections = {name: decode_section(columns, name, value) for name in PROJECTS}
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
            "alignments": sorted(
                {
                    name
                    for section in sections.values()
                    if section is not None
                    for name in alignment_names(value, section).values()
                }
            ),
            "projects": {
                name: describe_section(value, section)
                for name, section in sections.items()
                if section is not None
            },
        }
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise place.corrupt(f"the entry is not valid: {error}") from None


def decoded(kind: str, columns: Mapping[str, PackedColumn], place: Place) -> Any:
    """The value of a record's columns.

    Raises:
        ShardCorrupt: the bytes are not those of one; names shard and record.
    """
    try:
        return DECODERS[kind](columns)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise place.corrupt(f"the {kind} is not valid: {error}") from None


def records_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The table of these rows, sorted; the same rows give the same bytes.

    Raises:
        ValueError: a record is there twice.
    """
    order = sorted(rows, key=lambda row: (row["kind"], row["record_id"]))
    for one, two in itertools.pairwise(order):
        if (one["kind"], one["record_id"]) == (two["kind"], two["record_id"]):
            raise ValueError(f"{one['kind']} {one['record_id']} is there twice")
    return pa.Table.from_pylist(order, schema=records_schema()).combine_chunks()


def read_record_rows(storage: Storage, entry: ShardEntry) -> list[dict[str, Any]]:
    """Rows of a shard: from its part, or from the shard itself if that is missing."""
    key, path = part_key(entry.name), f"{storage.uri}/{shard_key(entry.name)}"
    try:
        data = storage.read(key)
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            table = read_table(data[32:], key, "records", records_schema())
            if table["shard"].unique().to_pylist() == [entry.name]:
                return list(table.to_pylist())
    except (ShardMissing, ShardCorrupt):
        pass  # a part is only a shortcut; the shard is the truth
    whole = pa.py_buffer(storage.read(shard_key(entry.name)))
    if hashlib.sha256(memoryview(whole)).hexdigest() != entry.sha256:
        raise ShardCorrupt("sha256 does not match", path=path)
    return list(record_rows(whole, entry.name, path).to_pylist())


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a row."""
    found: dict[str, Any] = json.loads(row["facts"])
    return found

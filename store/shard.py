"""Records -> one shard file, named by its sha256; and a shard file -> its records and index."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, Final

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.base.errors import ShardCorrupt, ShardMissing
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.decode import ChainDecoder, Origin
from evofeed.store.encode import encode_record
from evofeed.store.index import describe, index_bytes, index_schema, index_table, read_table
from evofeed.store.ipc import open_plain
from evofeed.store.layout import (
    CHAIN,
    HEADER_NBYTES,
    KINDS,
    PackedColumn,
    arrow_schema,
    check_schema,
    pack_column,
    unpack_column,
)
from evofeed.store.manifest import NAME, ShardEntry, check_name
from evofeed.store.opening import open_storage
from evofeed.store.storage import Storage

MESSAGE: Final = b"\xff\xff\xff\xff"
"""First bytes of every Arrow message."""
END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""Arrow's mark after the last record batch: shows that a footer has lost none."""

Rows = Callable[[pa.Buffer, str, str], pa.Table]
"""Function that makes rows of an index from a shard's bytes, its name and its path."""


def write_shard(uri: str, records: Iterable[ChainRecord]) -> ShardEntry:
    """Write one shard of the dataset at `uri`; returns its name, size and number of chains.

    The bytes depend on the set of records alone, and the name on the bytes: running it again,
    anywhere, writes the same file. No reader sees the shard until a snapshot that names it is
    committed.

    Raises:
        ValueError: no record, a chain twice, or a chain id that is not a safe name.
        StoreError: no room, or the dataset cannot be written.
    """
    encoded = {}
    for record in records:
        if check_name(record.chain_id, "chain id") in encoded:
            raise ValueError(f"chain {record.chain_id} twice in one shard")
        encoded[record.chain_id] = encode_record(record)
    if not encoded:
        raise ValueError("a shard needs at least one record")
    data = shard_bytes(encoded)
    encoded.clear()  # its columns are in the file now: a deep alignment takes gigabytes
    return store_shard(open_storage(uri), data)


def shard_bytes(encoded: Mapping[str, Mapping[str, PackedColumn]], kind: str = CHAIN) -> pa.Buffer:
    """The file of these chains, or records of another kind, in order of their ids."""
    size = pa.MockOutputStream()
    _write(size, encoded, kind)
    buffer = pa.allocate_buffer(size.size())  # a growing buffer would be copied and twice as long
    _write(pa.FixedSizeBufferWriter(buffer), encoded, kind)
    return buffer


def _write(
    sink: pa.NativeFile, encoded: Mapping[str, Mapping[str, PackedColumn]], kind: str
) -> None:
    schema = arrow_schema(kind)
    with pa.ipc.new_file(sink, schema) as writer:
        for record_id in sorted(encoded):
            arrays = [pa.array([record_id], pa.large_utf8())]
            for name in KINDS[kind]:
                cell = pack_column(record_id, name, encoded[record_id][name])
                ends = pa.py_buffer(np.array([0, len(cell)], np.int64))
                cells = [None, ends, pa.py_buffer(cell)]  # pa.array would copy the cell
                arrays.append(pa.Array.from_buffers(pa.large_binary(), 1, cells))
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def shard_name(data: pa.Buffer) -> str:
    """The name of a shard's file."""
    return f"{hashlib.sha256(memoryview(data)).hexdigest()}.arrow"


def store_shard(storage: Storage, data: pa.Buffer, rows: Rows | None = None) -> ShardEntry:
    """Store a shard's bytes, and its part: the index rows that `rows` makes of them, by default
    `shard_index`."""
    name = shard_name(data)
    table = (rows or shard_index)(data, name, storage.uri)
    part = index_bytes(table)
    # The part is written first, so a process that sees the shard finds its part.
    storage.put(part_key(name), hashlib.sha256(part).digest() + part)
    storage.put(shard_key(name), memoryview(data).cast("B"))
    digest = name.removesuffix(".arrow")
    return ShardEntry(name=name, sha256=digest, nbytes=data.size, chains=table.num_rows)


def shard_key(name: str) -> str:
    """Key of a shard in the storage."""
    return f"shards/{name}"


def part_key(name: str) -> str:
    """Key of a shard's part: the index of its chains."""
    return f"parts/{name.removesuffix('.arrow')}.index"


def shard_kind(data: pa.Buffer, path: str) -> str:
    """The kind of a shard's records, its schema and version checked.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a shard.
    """
    return check_schema(open_plain(data, path).schema, path)


def read_batches(data: pa.Buffer, path: str, kind: str) -> Iterator[pa.RecordBatch]:
    """The record batch of each record, validated in full; schema and version first.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a shard, or a batch is not one full row.
    """
    reader = open_plain(data, path)
    if (actual := check_schema(reader.schema, path)) != kind:
        raise ShardCorrupt(f"a shard of kind {actual}, not {kind}", path=path)
    for number in count():
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ShardCorrupt(f"record batch {number}: {error}", path=path) from None
        if batch.num_rows != 1 or any(column.null_count for column in batch.columns):
            raise ShardCorrupt(f"record batch {number} is not one full row", path=path)
        yield batch


def shard_index(data: pa.Buffer, name: str, path: str) -> pa.Table:
    """Index rows of a shard, from its bytes alone: decodes and checks everything.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a valid shard.
    """
    rows = []
    for origin, columns, span in read_records(data, path, CHAIN):
        saved = sum(column.raw_nbytes - len(column.payload) for column in columns.values())
        row = {"shard": name, "raw_nbytes": span["nbytes"] + saved}
        rows.append(describe(ChainDecoder(columns, origin).record()) | span | row)
    try:
        return index_table(rows)
    except ValueError as error:
        raise ShardCorrupt(str(error), path=path) from None


def read_records(
    data: pa.Buffer, path: str, kind: str
) -> Iterator[tuple[Origin, dict[str, PackedColumn], dict[str, Any]]]:
    """Each record of a shard: its origin, its columns, and the columns of its span in a table.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a valid shard of that kind.
    """
    end = first = schema_end(memoryview(data))
    for batch in read_batches(data, path, kind):
        origin, columns, span = _record(data, batch, kind, end, path)
        end = span["offset"] + span["nbytes"]
        yield origin, columns, span
    if end == first or bytes(memoryview(data)[end : end + 8]) != END_OF_STREAM:
        raise ShardCorrupt("records are missing at its end", path=path)


def schema_end(view: memoryview) -> int:
    """Offset of the first record batch's message, after magic and schema message."""
    return 16 + int.from_bytes(view[12:16], "little")


def _record(
    data: pa.Buffer, batch: pa.RecordBatch, kind: str, offset: int, path: str
) -> tuple[Origin, dict[str, PackedColumn], dict[str, Any]]:
    record_id = str(batch.column(0)[0].as_py())
    origin = Origin(record_id, path)
    if bytes(memoryview(data)[offset : offset + 4]) != MESSAGE:
        raise origin.corrupt(f"no Arrow message begins at byte {offset}")
    if not NAME.fullmatch(record_id):
        raise origin.corrupt("this is not an id")
    starts, columns, stop = [], {}, offset
    for name in KINDS[kind]:
        cell = _cell(batch.column(name))
        column = unpack_column(memoryview(cell), record_id, name, path)
        start = cell.address - data.address
        if start < stop:
            raise origin.corrupt(f"column {name} overlaps the previous column")
        starts.append(start)
        columns[name] = column
        stop = start + HEADER_NBYTES + len(column.payload)
    stop += -stop % 8
    if stop > data.size:
        raise origin.corrupt("the file ends within this record")
    span = {
        "offset": offset,
        "nbytes": stop - offset,
        "checksum": xxhash.xxh3_64_intdigest(memoryview(data)[offset:stop]),
        "column_offsets": [start - offset for start in (*starts, stop)],
    }
    return origin, columns, span


def _cell(column: pa.LargeBinaryArray) -> pa.Buffer:
    """The value of a one-row column, without a copy."""
    _, ends, values = column.buffers()
    start, stop = np.frombuffer(ends, np.int64, 2, 8 * column.offset).tolist()
    return values.slice(start, stop - start) if values is not None else pa.py_buffer(b"")


def read_part(storage: Storage, entry: ShardEntry) -> pa.Table:
    """Index rows of a shard: from its part, or from the shard itself if that is missing."""
    return part_of(storage, entry, "index", index_schema(), shard_index)


def part_of(
    storage: Storage, entry: ShardEntry, table: str, schema: pa.Schema, rows: Rows
) -> pa.Table:
    """As `read_part`, for the table of a schema that `rows` makes of a shard's bytes."""
    try:
        data = storage.read(part_key(entry.name))
        if hashlib.sha256(data[32:]).digest() == data[:32]:
            part = read_table(data[32:], part_key(entry.name), table, schema)
            if part["shard"].unique().to_pylist() == [entry.name]:
                return part
    except (ShardMissing, ShardCorrupt):
        pass  # a part is only a shortcut; the shard is the truth
    path = f"{storage.uri}/{shard_key(entry.name)}"
    shard = pa.py_buffer(storage.read(shard_key(entry.name)))
    if shard_name(shard) != entry.name:
        raise ShardCorrupt("sha256 does not match", path=path)
    return rows(shard, entry.name, path)

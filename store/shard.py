"""Records -> one shard file, named by its sha256; and back to where each chain lies in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import xxhash

from evofeed.errors import ShardCorrupt, ShardMissing
from evofeed.features import ChainRecord
from evofeed.store.decode import Place, decode_record
from evofeed.store.encode import encode_record
from evofeed.store.index import describe, index_bytes, index_table, read_index
from evofeed.store.layout import (
    COLUMNS,
    HEADER_NBYTES,
    PackedColumn,
    arrow_schema,
    check_schema,
    pack_column,
    unpack_column,
)
from evofeed.store.manifest import ShardEntry, check_name
from evofeed.store.storage import Storage, open_storage


def write_shard(uri: str, records: Iterable[ChainRecord], *, zstd: bool = False) -> ShardEntry:
    """Write one shard of the dataset at `uri` and say what it is.

    The bytes are a pure function of the set of records, the name of the bytes:
    running it again, anywhere, writes the same file. Nothing points at the shard
    until a snapshot that names it is committed. `zstd` makes it about half as large
    for cold storage and several times as dear to read.

    Raises:
        ValueError: no record, a chain twice, or a chain id that is no safe name.
        StoreError: no room, or the place cannot be written.
    """
    encoded = {}
    for record in records:
        if check_name(record.chain_id, "chain id") in encoded:
            raise ValueError(f"chain {record.chain_id} twice in one shard")
        encoded[record.chain_id] = encode_record(record, zstd=zstd)
    if not encoded:
        raise ValueError("a shard needs at least one record")
    return store_shard(open_storage(uri), shard_bytes(encoded))


def shard_bytes(encoded: Mapping[str, Mapping[str, PackedColumn]]) -> pa.Buffer:
    """The file of these chains, in order of chain id."""
    schema = arrow_schema()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for chain_id in sorted(encoded):
            cells = [pack_column(chain_id, name, encoded[chain_id][name]) for name in COLUMNS]
            arrays = [pa.array([chain_id], pa.large_utf8())]
            arrays += [pa.array([cell], pa.large_binary()) for cell in cells]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()


def store_shard(storage: Storage, data: pa.Buffer) -> ShardEntry:
    """Put a shard's bytes, and the index of its chains, where they belong."""
    view = memoryview(data).cast("B")
    digest = hashlib.sha256(view).hexdigest()
    name = f"{digest}.arrow"
    table = shard_index(data, name, storage.uri)
    # The index part goes first: whoever sees the shard finds its part.
    storage.put(part_key(name), index_bytes(table))
    storage.put(shard_key(name), view)
    return ShardEntry(name=name, sha256=digest, nbytes=len(view), chains=table.num_rows)


def shard_key(name: str) -> str:
    """Where a shard lies."""
    return f"shards/{name}"


def part_key(name: str) -> str:
    """Where the index of one shard's chains lies."""
    return f"parts/{name}"


def open_shard(data: pa.Buffer, path: str) -> pa.RecordBatchFileReader:
    """The Arrow reader of a shard, its schema and version checked."""
    try:
        reader = pa.ipc.open_file(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardCorrupt(f"no Arrow file: {error}", path=path) from None
    check_schema(reader.schema, path)
    return reader


def read_batch(reader: pa.RecordBatchFileReader, number: int, path: str) -> pa.RecordBatch:
    """One chain's record batch, validated in full."""
    try:
        batch = reader.get_batch(number)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardCorrupt(f"record batch {number}: {error}", path=path) from None
    if batch.num_rows != 1:
        raise ShardCorrupt(f"record batch {number} has {batch.num_rows} rows, not 1", path=path)
    return batch


def shard_index(data: pa.Buffer, name: str, path: str) -> pa.Table:
    """Index rows of a shard, made from its bytes alone: decodes and checks everything.

    Raises:
        ShardCorrupt, SchemaMismatch: the file is not a sound shard.
    """
    reader = open_shard(data, path)
    rows, end = [], 0
    for number in range(reader.num_record_batches):
        batch = read_batch(reader, number, path)
        row, end = _index_row(data, batch, end, path)
        rows.append(row | {"shard": name})
    return index_table(rows)


def _index_row(
    data: pa.Buffer, batch: pa.RecordBatch, end: int, path: str
) -> tuple[dict[str, Any], int]:
    chain_id = check_name(batch.column(0)[0].as_py(), "chain id")
    place = Place(chain_id, path)
    view = memoryview(data).cast("B")
    starts, columns, saved = [], {}, 0
    for name in COLUMNS:
        cell = batch.column(name).buffers()[2]
        starts.append(cell.address - data.address)
        columns[name] = unpack_column(memoryview(cell), chain_id, name, path)
        stop = starts[-1] + HEADER_NBYTES + len(columns[name].payload)
        saved += columns[name].raw_nbytes - len(columns[name].payload)
    offset = _span_start(view, end, starts[0])
    stop += -stop % 8
    row = describe(decode_record(columns, place)) | {
        "offset": offset,
        "nbytes": stop - offset,
        "raw_nbytes": stop - offset + saved,
        "checksum": xxhash.xxh3_64_intdigest(view[offset:stop]),
        "column_offsets": [start - offset for start in (*starts, stop)],
    }
    return row, stop


def _span_start(view: memoryview, end: int, first: int) -> int:
    """Where the batch's message begins: behind the previous one, or behind the schema."""
    if end:
        return end
    schema_nbytes = int.from_bytes(view[12:16], "little")
    start = 16 + schema_nbytes
    assert start < first
    return start


def read_part(storage: Storage, entry: ShardEntry) -> pa.Table:
    """Index rows of a shard: from its part, or from the shard itself if that is missing."""
    try:
        table = read_index(storage.read(part_key(entry.name)), part_key(entry.name))
        if table.num_rows == entry.chains and table["shard"].unique().to_pylist() == [entry.name]:
            return table
    except (ShardMissing, ShardCorrupt):
        pass  # a part is only a shortcut; the shard is the truth
    data = pa.py_buffer(storage.read(shard_key(entry.name)))
    if hashlib.sha256(memoryview(data)).hexdigest() != entry.sha256:
        raise ShardCorrupt("sha256 does not match", path=f"{storage.uri}/{shard_key(entry.name)}")
    return shard_index(data, entry.name, f"{storage.uri}/{shard_key(entry.name)}")

"""Chains of several shards in one: small shards joined, removed chains left behind.

Columns are copied packed. A chain's bytes do not depend on where in a file they are, so
its checksum stays, and only its place in the index is new.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.store.index import canonical
from evofeed.store.ipc import refuse_compressed
from evofeed.store.layout import arrow_schema
from evofeed.store.manifest import ShardEntry
from evofeed.store.shard import schema_end, shard_index, store_indexed
from evofeed.store.spans import Spans
from evofeed.store.storage import Storage


def join_chains(storage: Storage, rows: pa.Table) -> ShardEntry:
    """Write one shard of the chains that these rows of an index name.

    Its bytes depend on the chains alone, not on the shards they came from. They are in
    memory while it is written.

    Raises:
        ShardCorrupt, ShardMissing: a chain's bytes are wrong or gone.
        ValueError: a chain is in two rows.
    """
    rows = canonical([rows])
    spans, schema, sink = Spans(storage, rows), arrow_schema(), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for row in range(len(rows)):
            span = pa.py_buffer(spans.read_span(row).tobytes())
            message = pa.ipc.read_message(span)
            refuse_compressed(message, spans.place(row).path, spans.chain_id(row))
            writer.write_batch(pa.ipc.read_record_batch(message, schema))
    data = sink.getvalue()
    name = f"{hashlib.sha256(memoryview(data)).hexdigest()}.arrow"
    table = _moved(rows, memoryview(data), name)
    if table is None:  # another Arrow wrote the spans with other words around the same columns
        table = shard_index(data, name, storage.uri)
    return store_indexed(storage, data, table)


def _moved(rows: pa.Table, data: memoryview, name: str) -> pa.Table | None:
    """The rows at their new place; None if a chain's bytes there are not what they were."""
    offsets, at = [], schema_end(data)
    for nbytes, checksum in zip(
        rows["nbytes"].to_pylist(), rows["checksum"].to_pylist(), strict=True
    ):
        if xxhash.xxh3_64_intdigest(data[at : at + nbytes]) != checksum:
            return None
        offsets.append(at)
        at += nbytes
    new = {
        "shard": pa.array([name] * len(rows)),
        "offset": pa.array(offsets, pa.int64()),
        "cluster_size": pa.array(np.full(len(rows), -1, np.int32)),  # of a snapshot, not a shard
    }
    columns = [new.get(field, rows[field]) for field in rows.schema.names]
    return canonical([pa.table(columns, names=rows.schema.names)])


def groups_of(sizes: Iterable[int], nbytes: int) -> Iterator[list[int]]:
    """Numbers of consecutive items that together reach `nbytes`; the last may be smaller."""
    group: list[int] = []
    held = 0
    for number, size in enumerate(sizes):
        group.append(number)
        held += size
        if held >= nbytes:
            yield group
            group, held = [], 0
    if group:
        yield group

"""The index: one row per chain with its position in a shard, its sizes, and values for samplers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import SchemaMismatch, ShardCorrupt
from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import UNKNOWN
from evofeed.store.ipc import open_plain
from evofeed.store.layout import (
    CHAINS_VERSION,
    COLUMNS,
    UNPACKED_FREE,
    UNPACKED_RATIO,
    check_version,
)

TEXT: Final = pa.dictionary(pa.int32(), pa.utf8())
INDEX_FIELDS: Final = (
    ("chain_id", pa.utf8()),
    ("shard", TEXT),
    ("offset", pa.int64()),
    ("nbytes", pa.int64()),
    ("raw_nbytes", pa.int64()),
    ("checksum", pa.uint64()),
    ("num_res", pa.int32()),
    ("num_alignments", pa.int32()),
    ("num_deletions", pa.int32()),
    ("num_templates", pa.int32()),
    ("resolution", pa.float32()),
    ("release_date", pa.utf8()),
    ("method", TEXT),
    ("is_distillation", pa.bool_()),
    ("has_structure", pa.bool_()),
    ("num_unknown", pa.int32()),
    ("max_aa_fraction", pa.float32()),
    ("cluster_size", pa.int32()),
    ("cost", pa.int64()),
    ("column_offsets", pa.list_(pa.uint32(), len(COLUMNS) + 1)),
)
"""Rows are sorted by `chain_id`. `offset`, `nbytes`: the chain's span in the shard, in
bytes, and `raw_nbytes` its size without zstd; `checksum`: xxh3-64 of the span;
`column_offsets`: start of each column's header, relative to the span, and the end of
the last column; `cost`: see `chain_cost`."""


def table_schema(
    kind: str, fields: Iterable[tuple[str, pa.DataType]], version: tuple[int, int], **more: str
) -> pa.Schema:
    """Schema of a table of a snapshot, whose format is `evofeed-KIND`."""
    return pa.schema(
        [pa.field(name, type_, nullable=False) for name, type_ in fields],
        metadata={
            "evofeed.format": f"evofeed-{kind}",
            "evofeed.version": "{}.{}".format(*version),
            **{f"evofeed.{name}": value for name, value in more.items()},
        },
    )


def index_schema() -> pa.Schema:
    """Schema of the index file."""
    columns = json.dumps(COLUMNS, separators=(",", ":"))
    return table_schema("index", INDEX_FIELDS, CHAINS_VERSION, columns=columns)


def chain_cost(num_res: int, num_alignments: int, num_templates: int) -> int:
    """Work to read and featurize a chain, in MSA cells.

    A template residue counts as 37 cells: unpacking its atoms takes about 37 times as long as
    unpacking one 5-bit code.
    """
    return num_res * (num_alignments + 37 * num_templates)


def describe(record: ChainRecord) -> dict[str, Any]:
    """Values of a chain's row in the index, except its position in a shard."""
    counts = np.bincount(record.aatype, minlength=UNKNOWN + 1)
    return {
        "chain_id": record.chain_id,
        "num_res": record.num_res,
        "num_alignments": record.num_alignments,
        "num_deletions": record.sizes["K"],
        "num_templates": record.num_templates,
        "resolution": record.resolution,
        "release_date": record.release_date,
        "method": record.method,
        "is_distillation": record.is_distillation,
        "has_structure": record.all_atom_positions is not None,
        "num_unknown": int(counts[UNKNOWN]),
        "max_aa_fraction": float(counts.max()) / max(record.num_res, 1),
        "cluster_size": -1,
        "cost": chain_cost(record.num_res, record.num_alignments, record.num_templates),
    }


def index_table(rows: list[dict[str, Any]]) -> pa.Table:
    """The index of these rows; see `canonical`."""
    return canonical([pa.Table.from_pylist(rows, schema=index_schema())])


def canonical(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates indexes: sorted by chain id, dictionaries in order of first use.

    The same rows give the same bytes, whatever tables they came in.

    Raises:
        ValueError: a chain is in two rows.
    """
    schema = index_schema()
    plain = [_undictionary(table) for table in tables] or [_undictionary(schema.empty_table())]
    table = pa.concat_tables(plain).sort_by("chain_id").combine_chunks()
    ids = table["chain_id"]
    same = pc.equal(ids[1:], ids[:-1]) if len(ids) > 1 else pa.chunked_array([[False]])
    if pc.any(same).as_py():
        row = pc.index(same, True).as_py()
        shards = f"{table['shard'][row]} and {table['shard'][row + 1]}"
        raise ValueError(f"chain {ids[row]} is in two rows, of shards {shards}")
    columns = []
    for name, kind in INDEX_FIELDS:
        column = table[name]
        if kind == TEXT:
            column = column.dictionary_encode()
        columns.append(column.cast(kind))
    return pa.table(columns, schema=schema).combine_chunks()


def _undictionary(table: pa.Table) -> pa.Table:
    fields = [(name, pa.utf8() if kind == TEXT else kind) for name, kind in INDEX_FIELDS]
    return pa.table([table[name].cast(kind) for name, kind in fields], names=[n for n, _ in fields])


def index_bytes(table: pa.Table) -> bytes:
    """The index as an Arrow IPC file of one record batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def read_index(data: bytes | pa.Buffer, path: str) -> pa.Table:
    """The index, validated in full before any value is used.

    Raises:
        SchemaMismatch: another format version.
        ShardCorrupt: the bytes are not an index.
    """
    return read_table(data, path, "index", index_schema())


def check_spans(table: pa.Table, shards: Mapping[str, int], path: str) -> None:
    """Refuse rows of an index whose sizes exceed the bytes of `shards`: readers allocate by them.

    Raises:
        ShardCorrupt: a span leaves its shard, or cannot hold the sizes its row claims.
    """
    if not table.num_rows:
        return
    names = table["shard"].combine_chunks()
    sizes = np.array([shards.get(name, -1) for name in names.dictionary.to_pylist()])
    shard = sizes[names.indices.to_numpy()]
    offset, nbytes = (table[name].to_numpy() for name in ("offset", "nbytes"))
    columns = (f"num_{name}" for name in ("res", "alignments", "deletions", "templates"))
    L, N, K, T = (table[name].to_numpy().astype(np.int64) for name in columns)
    max_nbytes = np.maximum(UNPACKED_FREE, UNPACKED_RATIO * nbytes)
    valid = (offset >= 0) & (nbytes > 0) & (nbytes <= shard) & (offset <= shard - nbytes)
    valid &= (L > 0) & (N > 0) & (K >= 0) & (T >= 0)
    residues = np.maximum(L, 1)  # a row takes 5 bits a residue, a template 5 bytes
    row_nbytes = -(-5 * residues // 64) * 8
    valid &= (
        (max_nbytes // row_nbytes >= N) & (max_nbytes >= K) & (max_nbytes // (5 * residues) >= T)
    )
    if not valid.all():
        row = int(np.argmin(valid))
        why = f"its row claims more than shard {names[row]} or the chain's bytes can hold"
        raise ShardCorrupt(why, path=path, item=str(table["chain_id"][row]))


def read_table(data: bytes | pa.Buffer, path: str, kind: str, schema: pa.Schema) -> pa.Table:
    """A table of a snapshot, of format `evofeed-KIND`, from its bytes, validated in full.

    Raises:
        SchemaMismatch: another kind or format version.
        ShardCorrupt: the bytes are not such a table.
    """
    try:
        with open_plain(data, path) as reader:
            metadata = reader.schema.metadata or {}
            if metadata.get(b"evofeed.format") != f"evofeed-{kind}".encode():
                raise SchemaMismatch(f"not an evofeed {kind}", path=path)
            version = metadata.get(b"evofeed.version", b"").decode(errors="replace")
            check_version(version.split("."), path)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardCorrupt(f"the {kind} does not parse: {error}", path=path) from None
    if not table.schema.equals(schema):
        raise ShardCorrupt(f"columns are not those of an evofeed {kind}", path=path)
    return table.combine_chunks()

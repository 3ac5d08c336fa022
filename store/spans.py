"""Positions of chains and other records, and checked reads: one ranged read a record."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.base.errors import ChainMissing, ShardCorrupt, ShardMissing, StoreError
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.decode import ChainDecoder, Origin
from evofeed.store.layout import CHAIN, COLUMNS, KINDS, PackedColumn, unpack_column
from evofeed.store.shard import shard_key
from evofeed.store.storage import Storage, SupportsForget

READS = 2
"""Attempts at a chain whose bytes are wrong; the second bypasses local copies."""


class RecordSpan(NamedTuple):
    """Position of a record: everything a reader needs, so that it opens no table."""

    kind: str
    record_id: str
    key: str
    offset: int
    nbytes: int
    checksum: int
    starts: tuple[int, ...]


class SpanTable:
    """The index as flat arrays: position and sizes of each chain, by row."""

    def __init__(self, index: pa.Table) -> None:
        chunk = index["shard"].combine_chunks() if len(index) else None
        self._shards = [shard_key(name) for name in chunk.dictionary.to_pylist()] if chunk else []
        self.shard = _numbers(index, "shard")
        self.offset = _numbers(index, "offset")
        self.nbytes = _numbers(index, "nbytes")
        self.checksum = _numbers(index, "checksum")
        names = ("num_res", "num_alignments", "num_deletions", "num_templates")
        self.dims = np.stack([_numbers(index, name) for name in names], axis=-1)
        self.starts = _numbers(index, "column_offsets").reshape(-1, len(COLUMNS) + 1)
        self._ids = index["chain_id"].combine_chunks() if len(index) else []

    def __len__(self) -> int:
        return len(self.offset)

    def row(self, chain: str | int) -> int:
        """Row of a chain in the index.

        Raises:
            ChainMissing: no such chain in this snapshot (a KeyError, too).
        """
        if isinstance(chain, str):
            row = bisect_left(self._ids, chain, key=lambda value: value.as_py())
            if row == len(self) or self.chain_id(row) != chain:
                near = self.chain_id(row) if row < len(self) else ""
                hint = f", did you mean {near!r}?" if chain and near.startswith(chain) else ";"
                raise ChainMissing(
                    f"no chain {chain!r} in this snapshot{hint} "
                    "`evofeed snapshots chains` lists them"
                )
            return row
        if not -len(self) <= chain < len(self):
            raise ChainMissing(f"no row {chain}: the snapshot has {len(self)} chains")
        return int(chain) % len(self)

    def chain_id(self, row: int) -> str:
        """Id of the chain in a row."""
        return str(self._ids[row].as_py())

    def key(self, row: int) -> str:
        """Key of the shard that holds a chain."""
        return str(self._shards[self.shard[row]])

    def span(self, row: int) -> RecordSpan:
        """Span of the chain in a row."""
        return RecordSpan(
            CHAIN,
            self.chain_id(row),
            self.key(row),
            int(self.offset[row]),
            int(self.nbytes[row]),
            int(self.checksum[row]),
            tuple(self.starts[row].tolist()),
        )


class Spans(SpanTable):
    """A span table and its storage: reads chains by row."""

    def __init__(self, storage: Storage, index: pa.Table) -> None:
        super().__init__(index)
        self.storage = storage

    def read_span(self, row: int) -> np.ndarray:
        """All bytes of a chain, as `read_bytes`."""
        return read_bytes(self.storage, self.span(row))

    def decoder(self, row: int) -> ChainDecoder:
        """Decoder of a chain, read in full, whose sizes match the index."""
        span, dims = self.span(row), self.dims[row].tolist()
        origin = origin_of(self.storage, span)
        decoder = ChainDecoder(_columns(span, self.read_span(row), origin), origin)
        if [decoder.dims[name] for name in "LNKT"] != dims:
            raise origin.corrupt(f"it has {decoder.dims}, the index says {dims}")
        return decoder

    def record(self, row: int) -> ChainRecord:
        """The full chain of a row (raises as `read_span` and `ChainDecoder`)."""
        return self.decoder(row).record()


def origin_of(storage: Storage, span: RecordSpan) -> Origin:
    """Record and shard of a span, for error messages."""
    return Origin(span.record_id, f"{storage.uri}/{span.key}")


def read_chain(storage: Storage, span: RecordSpan) -> ChainRecord:
    """A full chain (raises as `read_bytes` and `ChainDecoder`)."""
    return ChainDecoder(read_record(storage, span), origin_of(storage, span)).record()


def read_record(storage: Storage, span: RecordSpan) -> dict[str, PackedColumn]:
    """Columns of a record by one ranged read, checked (raises as `read_bytes`)."""
    return _columns(span, read_bytes(storage, span), origin_of(storage, span))


def _columns(span: RecordSpan, data: np.ndarray, origin: Origin) -> dict[str, PackedColumn]:
    starts = span.starts
    return {
        name: unpack_column(data.data[start:stop], span.record_id, name, origin.path, verify=False)
        for name, start, stop in zip(KINDS[span.kind], starts[:-1], starts[1:], strict=True)
    }


def read_bytes(storage: Storage, span: RecordSpan) -> np.ndarray:
    """All bytes of a record, u8, by one ranged read, and a second one if they are wrong.

    Raises:
        ShardCorrupt: the checksum is not that of the table; names shard and record.
        ShardMissing: the shard does not exist.
    """
    out, origin = np.empty(span.nbytes, np.uint8), origin_of(storage, span)
    short: ShardCorrupt | None = None
    for _ in range(READS):
        try:
            _read_range(storage, span.key, span.offset, out, origin)
            if xxhash.xxh3_64_intdigest(out.data) == span.checksum:
                return out
        except ShardCorrupt as error:
            short = error
        if isinstance(storage, SupportsForget):  # a damaged copy is fetched again
            storage.forget(span.key)
    raise short or origin.corrupt("checksum does not match: fetch the shard again")


def _read_range(storage: Storage, key: str, offset: int, out: np.ndarray, origin: Origin) -> None:
    try:
        storage.read_into(key, offset, out.data)
    except ShardMissing as error:
        raise ShardMissing(error.message, path=origin.path, item=origin.chain_id) from None
    except StoreError as error:
        if type(error) in (StoreError, ShardCorrupt) and "truncated" in error.message:
            raise origin.corrupt(error.message) from None
        raise


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    if not table.num_rows:
        return np.zeros(0, np.int64)
    chunk = table[name].combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = chunk.chunk(0)
    if pa.types.is_dictionary(chunk.type):
        chunk = chunk.indices
    elif pa.types.is_fixed_size_list(chunk.type):
        chunk = chunk.flatten()
    return np.asarray(chunk.to_numpy(zero_copy_only=True))

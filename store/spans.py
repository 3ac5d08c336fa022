"""Where chains are, and their bytes: one ranged read a chain, checked."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
import xxhash

from evofeed.base.errors import ChainMissing, ShardCorrupt, ShardMissing, StoreError
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.decode import ChainDecoder, Place
from evofeed.store.layout import COLUMNS, unpack_column
from evofeed.store.shard import shard_key
from evofeed.store.storage import Keeping, Storage

READS = 2
"""Attempts at a chain whose bytes come out wrong, the second from the source itself."""


class Spans:
    """The index as flat arrays, and the storage behind it."""

    def __init__(self, storage: Storage, index: pa.Table) -> None:
        self.storage = storage
        chunk = index["shard"].combine_chunks() if len(index) else None
        self._shards = [shard_key(name) for name in chunk.dictionary.to_pylist()] if chunk else []
        self.shard = _numbers(index, "shard")
        self.offset = _numbers(index, "offset")
        self.nbytes = _numbers(index, "nbytes")
        self.raw_nbytes = _numbers(index, "raw_nbytes")
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
            at = bisect_left(self._ids, chain, key=lambda value: value.as_py())
            if at == len(self) or self.chain_id(at) != chain:
                near = self.chain_id(at) if at < len(self) else ""
                meant = f", did you mean {near!r}?" if chain and near.startswith(chain) else ";"
                raise ChainMissing(
                    f"no chain {chain!r} in this snapshot{meant} "
                    "`evofeed snapshots chains` lists them"
                )
            return at
        if not -len(self) <= chain < len(self):
            raise ChainMissing(f"no row {chain}: the snapshot has {len(self)} chains")
        return int(chain) % len(self)

    def chain_id(self, row: int) -> str:
        """Id of the chain in a row."""
        return str(self._ids[row].as_py())

    def key(self, row: int) -> str:
        """Key of the shard that holds a chain."""
        return str(self._shards[self.shard[row]])

    def place(self, row: int) -> Place:
        """Names of chain and shard, for errors."""
        return Place(self.chain_id(row), f"{self.storage.uri}/{self.key(row)}")

    def read_span(self, row: int) -> np.ndarray:
        """All bytes of a chain, u8, by one ranged read; checked against the index.

        Raises:
            ShardCorrupt: they do not match; `ShardMissing`: the shard is not there.
        """
        out, place = np.empty(int(self.nbytes[row]), np.uint8), self.place(row)
        where = (self.key(row), int(self.offset[row]))
        return read_checked(self.storage, *where, out, int(self.checksum[row]), place)

    def decoder(self, row: int) -> ChainDecoder:
        """Decoder of a chain, read whole; the sizes it finds must be those of the index."""
        starts, place = self.starts[row].tolist(), self.place(row)
        view = self.read_span(row).data
        columns = {
            name: unpack_column(view[start:stop], place.chain_id, name, place.path, verify=False)
            for name, start, stop in zip(COLUMNS, starts[:-1], starts[1:], strict=True)
        }
        decoder = ChainDecoder(columns, place)
        if [decoder.dims[name] for name in "LNKT"] != self.dims[row].tolist():
            raise place.corrupt(f"it has {decoder.dims}, the index says {self.dims[row].tolist()}")
        return decoder

    def record(self, row: int) -> ChainRecord:
        """The chain of a row, whole (raises as `read_span` and `ChainDecoder`)."""
        return self.decoder(row).record()


def read_checked(
    storage: Storage, key: str, offset: int, out: np.ndarray, checksum: int, place: Place
) -> np.ndarray:
    """`out` filled by one ranged read, twice if the bytes come out wrong.

    Raises:
        ShardCorrupt: they do not match; `ShardMissing`: the shard is not there.
    """
    short: ShardCorrupt | None = None
    for _ in range(READS):
        try:
            _read_range(storage, key, offset, out, place)
            if xxhash.xxh3_64_intdigest(out.data) == checksum:
                return out
        except ShardCorrupt as error:
            short = error
        if isinstance(storage, Keeping):  # a flip or a cut on the way or in a cache heals itself
            storage.forget(key)
    raise short or place.corrupt("checksum does not match: fetch the shard again")


def _read_range(storage: Storage, key: str, offset: int, out: np.ndarray, place: Place) -> None:
    try:
        storage.read_into(key, offset, out.data)
    except ShardMissing as error:
        raise ShardMissing(error.message, path=place.path, item=place.chain_id) from None
    except StoreError as error:
        if type(error) in (StoreError, ShardCorrupt) and "truncated" in error.message:
            raise place.corrupt(error.message) from None
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

"""Chains as files, written as they are sent: never more than a piece in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from evofeed.chain_files import to_fasta
from evofeed.chain_record import ChainRecord
from evofeed.errors import EvofeedError

FASTA_MOST: Final = 5_000
"""Sequences of one export: each costs a read of its chain."""
MEDIA: Final = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "fasta": "text/plain",
}
_PIECE: Final = 65_536  # rows


def csv(index: pa.Table, rows: np.ndarray) -> Iterator[bytes]:
    """Rows of an index as CSV, with a header."""
    for i, piece in enumerate(_pieces(index, rows)):
        file = io.BytesIO()
        options = pyarrow.csv.WriteOptions(include_header=i == 0)
        pyarrow.csv.write_csv(piece, file, options)
        yield file.getvalue()


def parquet(index: pa.Table, rows: np.ndarray) -> Iterator[bytes]:
    """Rows of an index as Parquet."""
    file = _Passing()
    with pyarrow.parquet.ParquetWriter(file, index.schema) as writer:
        for piece in _pieces(index, rows):
            writer.write_table(piece)
            yield file.taken()
    yield file.taken()


def fasta(read: Callable[[str], ChainRecord], ids: Sequence[str]) -> Iterator[bytes]:
    """Sequences of chains; one that cannot be read is said so in a line of its own."""
    for chain_id in ids:
        try:
            yield to_fasta(read(chain_id)).encode()
        except EvofeedError as error:
            yield f";{chain_id} cannot be read: {type(error).__name__}\n".encode()


def _pieces(index: pa.Table, rows: np.ndarray) -> Iterator[pa.Table]:
    for start in range(0, max(1, len(rows)), _PIECE):
        yield index.take(pa.array(rows[start : start + _PIECE]))


class _Passing(io.RawIOBase):
    """A file whose bytes are taken away as they come."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))  # type: ignore[arg-type]
        self._parts.append(part)
        self._at += len(part)
        return len(part)

    def taken(self) -> bytes:
        """What was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

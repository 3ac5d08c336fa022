"""Chains as files, written as they are sent: never more than a piece in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from evofeed.base.errors import EvofeedError
from evofeed.protein.chain_files import to_fasta
from evofeed.protein.chain_record import ChainRecord

FASTA_MOST: Final = 5_000
"""Sequences of one export: each costs a read of its chain."""
MEDIA: Final = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.stream",
    "fasta": "text/plain",
}
_PIECE: Final = 65_536  # rows


_WRITERS: Final[dict[str, Callable[..., Any]]] = {
    "csv": pyarrow.csv.CSVWriter,
    "parquet": pyarrow.parquet.ParquetWriter,
    "arrow": pa.ipc.new_stream,
}


def table(kind: str, index: pa.Table, rows: np.ndarray) -> Iterator[bytes]:
    """Rows of an index as CSV with a header, as Parquet, or as a stream of Arrow's."""
    file = _Passing()
    plain = pa.schema(
        pa.field(one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type)
        for one in index.schema
    )  # pieces may have dictionaries of their own
    with _WRITERS[kind](file, plain) as writer:
        for start in range(0, max(1, len(rows)), _PIECE):
            piece = index.take(pa.array(rows[start : start + _PIECE]))
            writer.write_table(piece.cast(plain))
            yield file.taken()
    yield file.taken()


def fasta(read: Callable[[str], ChainRecord], ids: Sequence[str]) -> Iterator[bytes]:
    """Sequences of chains; one that cannot be read is said so in a line of its own."""
    for chain_id in ids:
        try:
            yield to_fasta(read(chain_id)).encode()
        except EvofeedError as error:
            yield f";{chain_id} cannot be read: {type(error).__name__}\n".encode()


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

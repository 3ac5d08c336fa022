"""Arrow files read as they lie: a compressed buffer is refused before anything is allocated for it.

Arrow decompresses a record batch the moment it is asked for, to whatever size its buffers declare:
95 KB can become 2 GiB. The format never compresses that way (FORMAT.md, "Shard"), so every message
is looked at first. What is looked at and what is read is one stream; the footer, which could lead
elsewhere, is not followed.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from evofeed.base.errors import ShardCorrupt

MAGIC: Final = b"ARROW1\0\0"
HEADER, COMPRESSION, DICTIONARY = 2, 3, 1
"""Fields of Arrow's Message.fbs: Message.header, RecordBatch.compression, DictionaryBatch.data."""


def open_plain(data: bytes | pa.Buffer, path: str) -> pa.RecordBatchStreamReader:
    """A reader of an Arrow file's record batches, in file order and without copies.

    Raises:
        ShardCorrupt: the bytes are no Arrow file, or a message of it is compressed.
    """
    data = pa.py_buffer(data)
    if bytes(memoryview(data)[: len(MAGIC)]) != MAGIC:
        raise ShardCorrupt("no Arrow file: it does not begin with ARROW1", path=path)
    stream = data.slice(len(MAGIC))
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            _refuse_compressed(message, path)
        return pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardCorrupt(f"no Arrow file: {error}", path=path) from None


def _refuse_compressed(message: pa.Message, path: str) -> None:
    """Nothing, for a message whose buffers are as they lie.

    Raises:
        ShardCorrupt: they are compressed, or its metadata points outside itself.
    """
    try:
        batch = _Table.root(message.metadata).table(HEADER)
        if batch is not None and message.type == "dictionary":
            batch = batch.table(DICTIONARY)
        if batch is None or message.type == "schema":
            return
        codec = batch.field(COMPRESSION)
    except struct.error:
        raise ShardCorrupt("an Arrow message points outside itself", path=path) from None
    if codec is not None:
        why = "its buffers are compressed by Arrow, which no evofeed file is: make it again"
        raise ShardCorrupt(why, path=path)


class _Table:
    """A flatbuffer table, its fields by number."""

    def __init__(self, data: memoryview, at: int) -> None:
        self.data, self.at = data, at
        self.fields = at - struct.unpack_from("<i", data, at)[0]

    @classmethod
    def root(cls, data: pa.Buffer) -> _Table:
        view = memoryview(data)
        return cls(view, struct.unpack_from("<I", view)[0])

    def field(self, number: int) -> int | None:
        """Where a field's value is; None if it is absent."""
        (end,) = struct.unpack_from("<H", self.data, self.fields)
        slot = 4 + 2 * number
        offset = struct.unpack_from("<H", self.data, self.fields + slot)[0] if slot < end else 0
        return self.at + offset if offset else None

    def table(self, number: int) -> _Table | None:
        """A field that is a table: an offset leads to it."""
        at = self.field(number)
        if at is None:
            return None
        return _Table(self.data, at + struct.unpack_from("<I", self.data, at)[0])

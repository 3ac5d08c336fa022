"""Reading Arrow files without decompression: a compressed buffer is refused before allocation.

Arrow decompresses a record batch when it reads it, to whatever size its buffers declare: 95 KB can
become 2 GiB. The format never compresses that way (FORMAT.md, "Shard"), so every message is checked
first. The checked messages and the batches come from the same stream; the footer, which could point
at others, is not used.
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
        ShardCorrupt: the bytes are not an Arrow file, or a message of it is compressed.
    """
    data = pa.py_buffer(data)
    if bytes(memoryview(data)[: len(MAGIC)]) != MAGIC:
        raise ShardCorrupt("not an Arrow file: it does not begin with ARROW1", path=path)
    stream = data.slice(len(MAGIC))
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            _refuse_compressed(message, path)
        return pa.ipc.open_stream(stream)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ShardCorrupt(f"not an Arrow file: {error}", path=path) from None


def _refuse_compressed(message: pa.Message, path: str) -> None:
    """Refuses a message whose buffers are compressed, or whose metadata points outside itself."""
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
        why = "its buffers are compressed by Arrow, unlike evofeed's files: make it again"
        raise ShardCorrupt(why, path=path)


class _Table:
    """A flatbuffer table, with its fields by number."""

    def __init__(self, data: memoryview, start: int) -> None:
        self.data, self.start = data, start
        self.vtable = start - struct.unpack_from("<i", data, start)[0]

    @classmethod
    def root(cls, data: pa.Buffer) -> _Table:
        view = memoryview(data)
        return cls(view, struct.unpack_from("<I", view)[0])

    def field(self, number: int) -> int | None:
        """Position of a field's value; None if it is absent."""
        (end,) = struct.unpack_from("<H", self.data, self.vtable)
        slot = 4 + 2 * number
        offset = struct.unpack_from("<H", self.data, self.vtable + slot)[0] if slot < end else 0
        return self.start + offset if offset else None

    def table(self, number: int) -> _Table | None:
        """A field that is a table, which the field's value is an offset to."""
        position = self.field(number)
        if position is None:
            return None
        return _Table(self.data, position + struct.unpack_from("<I", self.data, position)[0])

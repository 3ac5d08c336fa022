"""Small integers, runs and texts: the plain codecs of FORMAT.md, encoded and decoded.

Decoders raise `ValueError` on wrong bytes; callers name the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from evofeed.store.layout import Codec, Compression, PackedColumn, max_unpacked

ZSTD_LEVEL = 9
"""On MSAs, decodes faster than level 3 and is a tenth smaller."""
NARROW: dict[Codec, np.dtype] = {Codec.UINT8: np.dtype("u1"), Codec.UINT16: np.dtype("<u2")}
ROW_COUNTS = {Codec.ROW_COUNTS8: "u1", Codec.ROW_COUNTS16: "<u2", Codec.ROW_COUNTS32: "<u4"}


def packed(codec: Codec, payload: bytes) -> PackedColumn:
    """An uncompressed column."""
    return PackedColumn(codec, memoryview(payload), raw_nbytes=len(payload))


def compressed(column: PackedColumn) -> PackedColumn:
    """The column under zstd, if that is smaller and within the limit of readers."""
    codec = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
    small = codec.compress(pa.py_buffer(column.payload), asbytes=True)
    if not len(small) < len(column.payload) <= max_unpacked(len(small)):
        return column
    return PackedColumn(column.codec, memoryview(small), Compression.ZSTD, column.raw_nbytes)


def decompressed(column: PackedColumn, limit: int | None = None) -> PackedColumn:
    """The column without compression; refused if it claims more bytes than `limit`."""
    if column.compression == Compression.NONE:
        return column
    max_nbytes = max_unpacked(len(column.payload))
    if limit is not None:
        max_nbytes = min(limit, max_nbytes)
    if column.raw_nbytes > max_nbytes:
        raise ValueError(f"{column.raw_nbytes} bytes claimed, {max_nbytes} possible")
    try:
        codec = pa.Codec("zstd")
        plain = codec.decompress(pa.py_buffer(column.payload), column.raw_nbytes, asbytes=True)
    except (OSError, pa.ArrowException, MemoryError) as error:
        raise ValueError(str(error)) from None
    if len(plain) != column.raw_nbytes:
        raise ValueError(f"it has {len(plain)} bytes, not {column.raw_nbytes} as claimed")
    return PackedColumn(column.codec, memoryview(plain), raw_nbytes=len(plain))


def pack_raw(array: np.ndarray) -> PackedColumn:
    """Little-endian C-order bytes of an array."""
    return packed(Codec.RAW, np.ascontiguousarray(array).tobytes())


def pack_integers(values: np.ndarray) -> PackedColumn:
    """UINT8 or UINT16 if all values fit, else RAW."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    if low >= 0 and high < 2**16 and values.dtype.itemsize > 1:
        codec = Codec.UINT8 if high < 2**8 else Codec.UINT16
        return packed(codec, values.astype(NARROW[codec]).tobytes())
    return pack_raw(values)


def unpack_integers(column: PackedColumn, dtype: np.dtype, count: int) -> np.ndarray:
    """`count` integers of a table dtype, from RAW, UINT8, UINT16 or RANGE."""
    if column.codec == Codec.RANGE:
        start = int(_exactly(column.payload, np.dtype(np.int32), 1)[0])
        return (start + np.arange(count)).astype(dtype)
    stored = dtype if column.codec == Codec.RAW else _narrow(column.codec)
    return _exactly(column.payload, stored, count).astype(dtype)


def pack_range(values: np.ndarray) -> PackedColumn:
    """RANGE if the values are consecutive, else as `pack_integers`."""
    if len(values) and np.array_equal(values, int(values[0]) + np.arange(len(values))):
        return packed(Codec.RANGE, values[:1].astype(np.int32).tobytes())
    return pack_integers(values)


def pack_runs(values: np.ndarray) -> PackedColumn:
    """RUNS (u32 count, u32 lengths, u8 values) if that is shorter than RAW."""
    starts = np.flatnonzero(np.diff(values, prepend=256)) if len(values) else np.zeros(0, int)
    lengths = np.diff(starts, append=len(values)).astype("<u4")
    payload = np.uint32(len(starts)).tobytes() + lengths.tobytes() + values[starts].tobytes()
    return packed(Codec.RUNS, payload) if len(payload) < len(values) else pack_raw(values)


def unpack_runs(column: PackedColumn, count: int) -> np.ndarray:
    """`count` bytes, from RUNS or RAW."""
    if column.codec == Codec.RAW:
        return _exactly(column.payload, np.dtype(np.uint8), count).copy()
    if column.codec != Codec.RUNS or len(column.payload) < 4:
        raise ValueError(f"codec {column.codec.name} holds no runs")
    runs = int(np.frombuffer(column.payload, "<u4", 1)[0])
    if len(column.payload) != 4 + 5 * runs:
        raise ValueError(f"{len(column.payload)} bytes are not {runs} runs")
    lengths = np.frombuffer(column.payload, "<u4", runs, 4)
    if int(lengths.sum(dtype=np.int64)) != count:
        raise ValueError(f"runs do not add up to {count}")
    return np.repeat(np.frombuffer(column.payload, np.uint8, runs, 4 + 4 * runs), lengths)


def pack_strings(texts: Sequence[str]) -> PackedColumn:
    """STRINGS: u32 distinct, u32 byte lengths, UTF-8 bytes, then one code a text.

    Codes are u8, u16 or u32 by the number of distinct texts, and left out if there is only
    one. Distinct texts are in order of appearance.
    """
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    words = [text.encode("utf-8", "surrogatepass") for text in numbers]
    payload = np.array([len(words), *map(len, words)], "<u4").tobytes() + b"".join(words)
    if len(words) > 1:
        codes = np.array([numbers[text] for text in texts])
        payload += codes.astype(_code_dtype(len(words))).tobytes()
    return packed(Codec.STRINGS, payload)


def unpack_strings(column: PackedColumn, count: int) -> tuple[str, ...]:
    """`count` texts."""
    payload = column.payload
    if column.codec != Codec.STRINGS or len(payload) < 4:
        raise ValueError(f"codec {column.codec.name} holds no texts")
    distinct = int(np.frombuffer(payload, "<u4", 1)[0])
    if distinct > count or len(payload) < 4 + 4 * distinct or (count and not distinct):
        raise ValueError(f"impossible number of distinct texts: {distinct}")
    ends = np.cumsum(np.frombuffer(payload, "<u4", distinct, 4), dtype=np.int64)
    ends = np.concatenate([[0], ends]) + 4 + 4 * distinct
    dtype = _code_dtype(distinct)
    if len(payload) != ends[-1] + (dtype.itemsize * count if distinct > 1 else 0):
        raise ValueError(f"{len(payload)} bytes do not fit {count} texts")
    words = [
        bytes(payload[start:stop]).decode("utf-8", "surrogatepass")
        for start, stop in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    if distinct <= 1:
        return tuple(words * count)
    codes = np.frombuffer(payload, dtype, count, int(ends[-1]))
    if codes.max(initial=0) >= distinct:
        raise ValueError("a code is not that of a text")
    return tuple(words[code] for code in codes.tolist())


def _code_dtype(distinct: int) -> np.dtype:
    return np.dtype("u1" if distinct <= 2**8 else "<u2" if distinct <= 2**16 else "<u4")


def _narrow(codec: Codec) -> np.dtype:
    if codec not in NARROW:
        raise ValueError(f"codec {codec.name} holds no integers")
    return NARROW[codec]


def _exactly(payload: memoryview, dtype: np.dtype, count: int) -> np.ndarray:
    if len(payload) != count * dtype.itemsize:
        raise ValueError(f"{len(payload)} bytes are not {count} of {dtype.name}")
    return np.frombuffer(payload, dtype)

"""Named arrays of one record as one payload: ARRAYS of FORMAT.md, encoded and decoded.

Integers are narrowed to the bytes they need, as values or as differences of neighbours,
whichever compresses better; texts are distinct words and a code each. Decoders raise `ValueError`
on wrong bytes; callers name the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.files import parse_json
from evofeed.store.codecs import compressed, decompressed, packed
from evofeed.store.layout import Codec, PackedColumn
from evofeed.store.manifest import canonical_json

_PLAIN, _DIFFERENCES, _TEXTS, _BITS = range(4)
_KINDS: Final = "biufU"


class ArrayValues(NamedTuple):
    """Contents of a payload: arrays by name, and other fields as plain JSON values."""

    arrays: dict[str, np.ndarray]
    more: dict[str, Any]


def pack_arrays(
    arrays: Mapping[str, np.ndarray], more: Mapping[str, Any] | None = None
) -> PackedColumn:
    """ARRAYS: u32 size of a JSON header, the header, then the arrays in its order; under zstd
    if that is smaller."""
    table, parts = [], []
    for name, array in arrays.items():
        encoding, part, extra = _pack(np.ascontiguousarray(array))
        table.append([name, array.dtype.str, list(array.shape), encoding, len(part), *extra])
        parts.append(part)
    header = canonical_json({"arrays": table, "more": dict(more or {})})
    payload = np.uint32(len(header)).tobytes() + header + b"".join(parts)
    return compressed(packed(Codec.ARRAYS, payload))


def unpack_arrays(column: PackedColumn) -> ArrayValues:
    """The arguments of `pack_arrays`.

    Raises:
        ValueError: the bytes are not such a payload.
    """
    if column.codec != Codec.ARRAYS:
        raise ValueError(f"codec {column.codec.name} holds no arrays")
    payload = decompressed(column).payload
    if len(payload) < 4:
        raise ValueError(f"{len(payload)} bytes are not arrays")
    start = 4 + int(np.frombuffer(payload, "<u4", 1)[0])
    header = parse_json(bytes(payload[4:start]))
    arrays = {}
    try:
        for name, dtype, shape, encoding, nbytes, *extra in header["arrays"]:
            if nbytes < 0 or start + nbytes > len(payload):
                raise ValueError(f"array {name}: {nbytes} bytes are missing")
            data = payload[start : start + nbytes]
            arrays[str(name)] = _unpack(data, dtype, shape, encoding, extra)
            start += nbytes
        if start != len(payload):
            raise ValueError(f"{len(payload) - start} bytes are left over after the arrays")
        return ArrayValues(arrays, dict(header["more"]))
    except (KeyError, TypeError, OverflowError, IndexError) as error:
        raise ValueError(f"not a header of arrays: {error!r}") from None


def _pack(array: np.ndarray) -> tuple[int, bytes, list[Any]]:
    kind = array.dtype.kind
    if kind not in _KINDS:
        raise ValueError(f"arrays of {array.dtype} cannot be stored")
    if kind == "U":
        texts = array.reshape(-1).tolist()
        numbers = {word: number for number, word in enumerate(dict.fromkeys(texts))}
        codes = np.array([numbers[word] for word in texts], np.int64)
        narrow = codes.astype(_narrow(codes))
        return _TEXTS, narrow.tobytes(), [narrow.dtype.str, list(numbers)]
    if kind == "b":
        return _BITS, np.packbits(array.reshape(-1)).tobytes(), []
    if kind == "f":
        return _PLAIN, array.tobytes(), [array.dtype.str]
    flat = array.reshape(-1).astype(np.int64 if kind == "i" else array.dtype)
    plain = flat.astype(_narrow(flat))
    if kind == "i" or array.dtype.itemsize < 8:
        steps = np.diff(flat.astype(np.int64), prepend=0)
        differences = steps.astype(_narrow(steps))
        if len(zlib.compress(differences.tobytes(), 1)) < len(zlib.compress(plain.tobytes(), 1)):
            return _DIFFERENCES, differences.tobytes(), [differences.dtype.str]
    return _PLAIN, plain.tobytes(), [plain.dtype.str]


def _narrow(values: np.ndarray) -> np.dtype:
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    names = ("<i1", "<i2", "<i4", "<i8") if low < 0 else ("<u1", "<u2", "<u4", "<i8", "<u8")
    return next(
        np.dtype(name) for name in names if np.iinfo(name).min <= low and high <= np.iinfo(name).max
    )


def _unpack(
    part: memoryview, dtype: str, shape: list[int], encoding: int, extra: list[Any]
) -> np.ndarray:
    target = np.dtype(dtype)
    if target.kind not in _KINDS or target.itemsize > 1 << 16 or min(shape, default=0) < 0:
        raise ValueError(f"impossible array of {dtype} and shape {shape}")
    count = 1
    for size in shape:
        count *= int(size)
    if encoding == _BITS:
        if len(part) != (count + 7) // 8:
            raise ValueError(f"{len(part)} bytes are not {count} bits")
        bits = np.unpackbits(np.frombuffer(part, np.uint8), count=count)
        return bits.view(np.bool_).reshape(shape)
    stored = np.dtype(extra[0])
    if stored.kind not in "iuf" or len(part) != count * stored.itemsize:
        raise ValueError(f"{len(part)} bytes are not {count} of {stored.name}")
    values = np.frombuffer(part, stored)
    if encoding == _TEXTS:
        words = np.array(extra[1], target)
        if values.max(initial=0) >= max(len(words), 1):
            raise ValueError("a code is not that of a text")
        return words[values].reshape(shape) if len(words) else np.zeros(shape, target)
    if encoding == _DIFFERENCES:
        values = np.cumsum(values, dtype=np.int64)
    return values.astype(target).reshape(shape)

"""mmCIF text as BinaryCIF, with the encodings that the archives use."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
from gemmi import cif


def as_bcif(text: str) -> bytes:
    """The file with every column encoded as its values allow."""
    blocks = []
    for block in cif.read_string(text):
        categories = []
        for name in block.get_mmcif_category_names():
            table = block.find_mmcif_category(name)
            columns = [
                _column(tag.removeprefix(name), list(table.column(i)))
                for i, tag in enumerate(table.tags)
            ]
            categories.append(
                {"name": name.rstrip("."), "rowCount": len(table), "columns": columns}
            )
        blocks.append({"header": block.name, "categories": categories})
    return bytes(msgpack.packb({"version": "0.3.0", "encoder": "t", "dataBlocks": blocks}))


def _column(name: str, raw: list[str]) -> dict[str, Any]:
    mask = np.array([{".": 1, "?": 2}.get(value, 0) for value in raw], np.uint8)
    known = [cif.as_string(value) for value, unset in zip(raw, mask, strict=True) if not unset]
    filled = [cif.as_string(v) if not unset else "" for v, unset in zip(raw, mask, strict=True)]
    if known and all(value.lstrip("-").isdecimal() and str(int(value)) == value for value in known):
        numbers = np.array([int(value or 0) for value in filled], np.int64)
        data, encoding = packed_integers(np.diff(numbers, prepend=0))
        encoding = [{"kind": "Delta", "origin": 0, "srcType": 3}, *encoding]
    elif name.startswith(("Cartn", "B_iso", "occupancy")) and known:
        numbers = np.round(np.array([float(value or 0) for value in filled]) * 1000)
        data, encoding = packed_integers(numbers.astype(np.int64))
        encoding = [{"kind": "FixedPoint", "factor": 1000, "srcType": 33}, *encoding]
    else:
        data, encoding = _strings(filled)
    column: dict[str, Any] = {"name": name, "data": {"data": data, "encoding": encoding}}
    if mask.any():
        column["mask"] = _runs(mask)
    return column


def packed_integers(values: np.ndarray) -> tuple[bytes, list[dict[str, Any]]]:
    """In single bytes, larger ones as sums."""
    found = []
    for value in values.tolist():
        rest = value
        while rest >= 127:
            found.append(127)
            rest -= 127
        while rest <= -128:
            found.append(-128)
            rest += 128
        found.append(rest)
    packing = {"kind": "IntegerPacking", "byteCount": 1, "isUnsigned": False}
    data = np.array(found, np.int8).tobytes()
    return data, [{**packing, "srcSize": len(values)}, {"kind": "ByteArray", "type": 1}]


def _strings(values: list[str]) -> tuple[bytes, list[dict[str, Any]]]:
    texts = list(dict.fromkeys(values))
    ends = np.cumsum([0, *map(len, texts)]).astype("<i4")
    encoding = {
        "kind": "StringArray",
        "stringData": "".join(texts),
        "offsets": ends.tobytes(),
        "offsetEncoding": [{"kind": "ByteArray", "type": 3}],
        "dataEncoding": [{"kind": "ByteArray", "type": 3}],
    }
    return np.array([texts.index(value) for value in values], "<i4").tobytes(), [encoding]


def _runs(mask: np.ndarray) -> dict[str, Any]:
    starts = np.flatnonzero(np.diff(mask, prepend=255))
    counts = np.diff(np.append(starts, len(mask)))
    runs = np.stack([mask[starts], counts], -1).astype("<i4")
    encoding = [
        {"kind": "RunLength", "srcType": 4, "srcSize": len(mask)},
        {"kind": "ByteArray", "type": 3},
    ]
    return {"data": runs.tobytes(), "encoding": encoding}

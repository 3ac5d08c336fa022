"""Checks of a packed column before a device decodes it.

A GPU does not raise on a wrong index, it ends the process. So sizes, and every
value that is used as an index there, are checked on the host. Checksums have been
verified before: this guards against a faulty writer, not against bit rot.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from evofeed.protein.residues import GAP, UNKNOWN
from evofeed.store.inner import FEATURES, Codec, Origin, PackedColumn, row_nbytes

_ITEM_DTYPES: Final[dict[Codec, np.dtype]] = {
    Codec.UINT8: np.dtype("u1"),
    Codec.UINT16: np.dtype("<u2"),
    Codec.ROW_COUNTS8: np.dtype("u1"),
    Codec.ROW_COUNTS16: np.dtype("<u2"),
    Codec.ROW_COUNTS32: np.dtype("<u4"),
}
ROW_COUNTS: Final = (Codec.ROW_COUNTS8, Codec.ROW_COUNTS16, Codec.ROW_COUNTS32)
_DTYPES: Final = {name: np.dtype(f.dtype) for name, f in FEATURES.items() if f.dtype != "str"}
_LIMITS: Final[dict[str, int | str]] = {
    "aatype": UNKNOWN,
    "msa": GAP,
    "template_aatype": GAP,
    "msa_order": "N",
    "deletion_row": "N",
    "deletion_column": "L",
}
"""Largest value of a column, or the dimension that values must be below."""


def check_column(
    name: str, column: PackedColumn, dims: dict[str, int], origin: Origin
) -> tuple[int, ...]:
    """Checks one decompressed column; returns the counts of FIXED coordinates.

    Raises:
        ShardCorrupt: sizes or values do not fit the chain's dims.
    """
    try:
        if column.codec == Codec.FIXED:
            return _check_fixed(name, column, dims)
        _check_plain(name, column, dims)
    except ValueError as error:
        raise origin.corrupt(f"column {name}: {error}") from None
    return ()


def _check_plain(name: str, column: PackedColumn, dims: dict[str, int]) -> None:
    count, dtype = _size_and_dtype(name, dims)
    codec, nbytes = column.codec, len(column.payload)
    if codec == Codec.MSA5:
        expected = count // dims["L"] * row_nbytes(dims["L"])
    elif codec == Codec.MASK37:
        expected = count // 37 * 5
    elif codec == Codec.RANGE:
        expected = 4
    elif codec in ROW_COUNTS:
        expected = dims["N"] * _ITEM_DTYPES[codec].itemsize
    elif codec == Codec.RAW or codec in _ITEM_DTYPES:
        expected = count * _ITEM_DTYPES.get(codec, dtype).itemsize
    else:
        raise ValueError(f"codec {codec.name} is unknown to this loader: upgrade evofeed")
    if nbytes != expected:
        raise ValueError(f"{nbytes} bytes, not {expected}")
    if codec in ROW_COUNTS:
        total = int(np.frombuffer(column.payload, _ITEM_DTYPES[codec]).sum(dtype=np.int64))
        if total != dims["K"]:
            raise ValueError(f"row counts add up to {total}, not {dims['K']}")
    elif name in _LIMITS and codec != Codec.MSA5 and expected:
        _check_range(name, np.frombuffer(column.payload, _ITEM_DTYPES.get(codec, dtype)), dims)


def _check_range(name: str, values: np.ndarray, dims: dict[str, int]) -> None:
    limit = _LIMITS[name]
    largest = dims[limit] - 1 if isinstance(limit, str) else limit
    if values.max() > largest or (values.dtype.kind == "i" and values.min() < 0):
        raise ValueError(f"values outside 0 to {largest}")


def _size_and_dtype(name: str, dims: dict[str, int]) -> tuple[int, np.dtype]:
    if name == "msa_order":
        return dims["N"], np.dtype(np.int32)
    feature = FEATURES[name]
    return math.prod(feature.shape(dims)), _DTYPES[name]


def _check_fixed(name: str, column: PackedColumn, dims: dict[str, int]) -> tuple[int, ...]:
    payload = column.payload
    if len(payload) < 16:
        raise ValueError(f"{len(payload)} bytes are not coordinates")
    anchors, atoms, exceptions, _ = np.frombuffer(payload, "<u4", 4).tolist()
    exceptions_start = 16 + 12 * anchors + 6 * (atoms - anchors)
    exceptions_start += -exceptions_start % 4
    if atoms < anchors or len(payload) != exceptions_start + 8 * exceptions:
        raise ValueError(f"{len(payload)} bytes do not fit {atoms} atoms of {anchors} residues")
    cells = np.frombuffer(payload, "<u4", exceptions, exceptions_start)
    if cells.max(initial=0) >= max(_size_and_dtype(name, dims)[0], 1):
        raise ValueError("an exception is outside the array")
    return anchors, atoms, exceptions

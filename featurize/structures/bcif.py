"""BinaryCIF -> the same tables as mmCIF text gives: a gemmi block.

Source: the BinaryCIF specification 0.3 (Mol*). MessagePack holds columns, each with a list of
encodings that are undone from the last to the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.base.errors import MmcifError
from evofeed.featurize.config import InputCaps
from evofeed.featurize.structures.cif import UNSET

_DTYPES: Final = {
    **{1: "<i1", 2: "<i2", 3: "<i4", 4: "<u1", 5: "<u2", 6: "<u4"},
    **{32: "<f4", 33: "<f8"},
}
_READ: Final = (
    "_atom_site _entry _entity_poly _entity_poly_seq _chem_comp _struct_asym _refine "
    "_em_3d_reconstruction _reflns _exptl _pdbx_audit_revision_history _ma_qa_metric "
    "_ma_qa_metric_local"
).split()
"""Categories that `mmcif` looks at."""


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """Values of an item: numbers, or codes into texts; `mask` is 1 for '.', 2 for '?'."""

    values: np.ndarray
    texts: list[str] | None
    mask: np.ndarray | None

    def strings(self) -> list[str]:
        """As mmCIF text has them, unquoted."""
        if self.texts is None:
            # The shortest text; single precision's own, for that is what was stored.
            values = self.values.tolist()
            found = [repr(v) if isinstance(v, int) else f"{v:.9g}" for v in values]
        else:
            found = [self.texts[code] if code >= 0 else "" for code in self.values.tolist()]
        if self.mask is None:
            return found
        return [
            text if not unset else UNSET[unset - 1]
            for text, unset in zip(found, self.mask.tolist(), strict=True)
        ]


def read_bcif(data: bytes, path: str, caps: InputCaps) -> Any:
    """The tables of a BinaryCIF file that `mmcif` looks at, as gemmi's block.

    Of several blocks it is the first that has atoms.

    Raises:
        MmcifError: not BinaryCIF, or larger than the caps.
    """
    import msgpack
    from gemmi import cif

    try:
        blocks = msgpack.unpackb(data, raw=False)["dataBlocks"]
        tables = [{c["name"]: c for c in block["categories"]} for block in blocks]
        first = next((i for i, table in enumerate(tables) if "_atom_site" in table), 0)
        block = cif.Block(str(blocks[first]["header"]).replace(" ", "_"))
        for name, category in tables[first].items():
            if name in _READ and (columns := _columns(category, caps)):
                loop = block.init_loop(f"{name}.", list(columns))
                loop.set_all_values([[_quoted(t) for t in c.strings()] for c in columns.values()])
        return block
    except MmcifError as error:
        error.path = path or None
        raise
    except KeyError as error:
        raise MmcifError(f"not BinaryCIF: {error} is missing", path=path) from None
    except Exception as error:  # msgpack, and whatever a wrong type or size leads to
        what = f"not BinaryCIF: {type(error).__name__}: {error}"
        raise MmcifError(what, path=path) from None


def _quoted(text: str) -> str:
    from gemmi import cif

    return text if text in UNSET else str(cif.quote(text))


def _columns(category: dict[str, Any], caps: InputCaps) -> dict[str, _Column]:
    count, limit = int(category["rowCount"]), caps.max_atoms
    if why := caps.excess("max_atoms", count, f"{count} rows of {category['name']}"):
        raise MmcifError(why)
    return {column["name"]: _column(column, count, limit) for column in category["columns"]}


def _column(column: dict[str, Any], count: int, limit: int) -> _Column:
    encoded, mask = column["data"], column.get("mask")
    first = encoded["encoding"][0]
    texts = None
    if first["kind"] == "StringArray":
        texts = _texts(first, limit)
        values = _decoded(encoded["data"], first["dataEncoding"], limit)
        if len(values) and not -1 <= values.min() <= values.max() < len(texts):
            raise MmcifError(f"item {column['name']} names texts that are not there")
    else:
        values = _decoded(encoded["data"], encoded["encoding"], limit)
    known = None if mask is None else _decoded(mask["data"], mask["encoding"], limit)
    for found in (values, known):
        if found is not None and len(found) != count:
            raise MmcifError(f"item {column['name']} has {len(found)} values for {count} rows")
    if known is not None and len(known) and not 0 <= known.min() <= known.max() <= 2:
        raise MmcifError(f"the mask of item {column['name']} has other values than 0, 1 and 2")
    return _Column(values, texts, known)


def _texts(encoding: dict[str, Any], limit: int) -> list[str]:
    joined = encoding["stringData"]
    ends = _decoded(encoding["offsets"], encoding["offsetEncoding"], limit).tolist()
    if ends != sorted(ends):
        raise MmcifError("offsets of texts go back")
    return [joined[start:end] for start, end in itertools.pairwise(ends)]


def _decoded(data: bytes, encodings: list[dict[str, Any]], limit: int) -> np.ndarray:
    values: Any = data
    for encoding in reversed(encodings):
        values = _DECODERS[encoding["kind"]](values, encoding, limit)
    return np.asarray(values)


def _byte_array(data: bytes, encoding: dict[str, Any], _: int) -> np.ndarray:
    return np.frombuffer(data, _DTYPES[encoding["type"]])


def _fixed_point(data: np.ndarray, encoding: dict[str, Any], _: int) -> np.ndarray:
    return data / np.float64(encoding["factor"])


def _interval_quantization(data: np.ndarray, encoding: dict[str, Any], _: int) -> np.ndarray:
    low, high = encoding["min"], encoding["max"]
    return np.asarray(low + data * ((high - low) / (encoding["numSteps"] - 1)))


def _run_length(data: np.ndarray, encoding: dict[str, Any], limit: int) -> np.ndarray:
    counts = data[1::2].astype(np.int64)
    if (counts < 0).any() or counts.sum() != encoding["srcSize"] or counts.sum() > limit:
        raise MmcifError(f"runs of {counts.sum()} values for {encoding['srcSize']}, cap {limit}")
    return np.repeat(data[::2], counts)


def _delta(data: np.ndarray, encoding: dict[str, Any], _: int) -> np.ndarray:
    values = data.astype(np.int64)
    values[:1] += encoding["origin"]
    return np.cumsum(values)


def _integer_packing(data: np.ndarray, encoding: dict[str, Any], _: int) -> np.ndarray:
    """Values beyond the small type's range are sums: its limits, then what is left."""
    bounds = np.iinfo(data.dtype)
    full = data == bounds.max
    if not encoding["isUnsigned"]:
        full |= data == bounds.min
    ends = np.flatnonzero(~full)
    sums = np.cumsum(data.astype(np.int64))[ends]
    values = np.diff(sums, prepend=0)
    if len(values) != encoding["srcSize"]:
        raise MmcifError(f"{len(values)} packed integers for {encoding['srcSize']}")
    return np.asarray(values)


_DECODERS: Final[dict[str, Callable[[Any, dict[str, Any], int], np.ndarray]]] = {
    "ByteArray": _byte_array,
    "FixedPoint": _fixed_point,
    "IntervalQuantization": _interval_quantization,
    "RunLength": _run_length,
    "Delta": _delta,
    "IntegerPacking": _integer_packing,
}

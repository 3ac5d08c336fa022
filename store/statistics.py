"""Exact statistics of the columns of an index: kinds, known values, extremes and histograms."""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNKNOWN: Final[dict[str, Any]] = {"resolution": 0.0, "cluster_size": -1}
_PHYSICAL: Final = ("shard", "offset", "nbytes", "raw_nbytes", "checksum")  # positions of bytes
_BINS: Final = 24
_QUANTILES: Final = (0.05, 0.25, 0.5, 0.75, 0.95)
_MAX_GROUPS: Final = 50


def column_statistics(index: pa.Table) -> dict[str, dict[str, Any]]:
    """Counts, extremes, quantiles and a histogram of each column, over all chains."""
    kinds = column_kinds(index.schema)
    return {
        name: _describe(known_values(index[name], name, kind), kind, index.num_rows)
        for name, kind in kinds.items()
        if name != "chain_id"
    }


def _describe(values: pa.ChunkedArray, kind: str, rows: int) -> dict[str, Any]:
    head: dict[str, Any] = {"kind": kind, "known": len(values), "unknown": rows - len(values)}
    if not len(values):
        return head
    if kind == "boolean":
        return head | {"true": int(pc.sum(values).as_py())}
    if kind in ("integer", "number"):
        return head | _numeric(values.to_numpy(), kind)
    if kind == "date":
        texts = pc.cast(values, pa.utf8())
        span = pc.min_max(texts).as_py()
        return head | {"min": span["min"], "max": span["max"], "years": _years(texts)}
    return head | {"values": _groups(values)}


def _numeric(values: np.ndarray, kind: str) -> dict[str, Any]:
    plain = int if kind == "integer" else lambda value: float(f"{value:.6g}")
    edges = _edges(values, kind)
    counts, _ = np.histogram(values, np.asarray(edges, np.float64))
    quantiles = np.quantile(values, _QUANTILES, method="inverted_cdf")
    return {
        "min": plain(values.min()),
        "max": plain(values.max()),
        "mean": float(f"{values.mean(dtype=np.float64):.6g}"),
        "quantiles": {str(q): plain(v) for q, v in zip(_QUANTILES, quantiles, strict=True)},
        "edges": edges,
        "counts": counts.tolist(),
    }


def _edges(values: np.ndarray, kind: str) -> list[int] | list[float]:
    """Edges of at most `_BINS` bins: equal ratios for counts, equal widths for the rest.

    Lengths and depths span three decades; equal widths would put most chains in one bin.
    """
    low, high = values.min(), values.max()
    if kind == "integer":
        ratios = np.geomspace(max(low, 1), max(high, 1) + 1, _BINS + 1)
        return sorted({int(low), *np.floor(ratios[1:-1]).astype(int).tolist(), int(high) + 1})
    top = high if high > low else low + 1
    return [float(f"{edge:.6g}") for edge in np.linspace(low, np.nextafter(top, np.inf), _BINS + 1)]


def _years(texts: Any) -> dict[str, int]:
    """Number of chains in each year from the first to the last, years without any included."""
    counts = _counted(pc.utf8_slice_codeunits(texts, 0, 4))
    first, last = min(counts), max(counts)
    if not (first.isdecimal() and last.isdecimal()):
        return dict(sorted(counts.items()))
    return {f"{y:04d}": counts.get(f"{y:04d}", 0) for y in range(int(first), int(last) + 1)}


def _groups(values: Any) -> dict[str, int]:
    counted = sorted(_counted(values).items(), key=lambda pair: (-pair[1], pair[0]))
    return dict(counted[:_MAX_GROUPS])


def _counted(values: Any) -> dict[str, int]:
    return {item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()}


def column_kinds(schema: pa.Schema) -> dict[str, str]:
    """Columns that describe a chain: each `integer`, `number`, `boolean`, `text` or `date`."""
    kinds = {field.name: _kind(field) for field in schema if field.name not in _PHYSICAL}
    return {name: kind for name, kind in kinds.items() if kind}


def known_values(column: pa.ChunkedArray, name: str, kind: str) -> pa.ChunkedArray:
    """A column's values without the unknown ones."""
    values = plain_values(column)
    return values.filter(is_known(values, name, kind))


def plain_values(values: Any) -> Any:
    """A column's values, also if the index has it as a dictionary."""
    kind = values.type
    return pc.cast(values, kind.value_type) if pa.types.is_dictionary(kind) else values


def _kind(field: pa.Field) -> str:
    kind = field.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if field.name == "release_date" or pa.types.is_date(kind):
        return "date"  # as text it is ISO, which sorts as dates do
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_floating(kind):
        return "number"
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else ""


def is_known(values: Any, column: str, kind: str) -> Any:
    """True for each known value of a column: resolution 0, size -1 and empty text are unknown."""
    masks = []
    if column in _UNKNOWN:
        masks.append(pc.not_equal(values, _UNKNOWN[column]))
    elif kind == "text" or (kind == "date" and not pa.types.is_date(values.type)):
        masks.append(pc.not_equal(values, ""))
    if kind == "number":
        masks.append(pc.invert(pc.is_nan(values)))
    if not masks or values.null_count:
        masks = [pc.is_valid(values), *(pc.fill_null(mask, False) for mask in masks)]
    return functools.reduce(pc.and_, masks)

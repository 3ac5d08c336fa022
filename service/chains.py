"""Pages of chains: the rows of a snapshot's index that pass a filter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service import filters
from evofeed.service.problems import Problem
from evofeed.service.work import require_time
from evofeed.store.inner import column_kinds

MAX_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """Some chains, and the row to go on at (None at the end)."""

    rows: list[dict[str, Any]]
    next_row: int | None


def columns_of(index: pa.Table, wanted: list[str] | None) -> list[str]:
    """The columns of a page: those asked for, or every one that describes a chain.

    Raises:
        Problem: 422, an unknown column.
    """
    there = list(column_kinds(index.schema))
    if unknown := sorted(set(wanted or ()) - set(there)):
        raise Problem(
            422,
            "bad_column",
            f"no column {unknown[0][:60]!r} in this snapshot's index",
            next=f"choose from {', '.join(there)}",
        )
    return [name for name in there if name in wanted] if wanted else there


def page(
    index: pa.Table, where: Any, columns: list[str], start: int, limit: int, *, scan: int = 65_536
) -> Page:
    """Up to `limit` chains from row `start` on, in index order.

    Args:
        index: the snapshot's index.
        where: filter (see `evofeed.service.filters`), or None.
        columns: columns of each chain.
        start: first row to look at.
        limit: rows at most.
        scan: rows looked at in one step.
    """
    filters.check(index.schema, where)
    parts: list[pa.Table] = []
    found, at, next_row = 0, start, None
    while at < index.num_rows and next_row is None:
        require_time()
        piece = index.slice(at, scan)
        hits = pc.indices_nonzero(filters.match(piece, where))
        if found + len(hits) > limit:
            next_row = at + hits[limit - found].as_py()
            hits = hits.slice(0, limit - found)
        found += len(hits)
        parts.append(piece.select(columns).take(hits))
        at += scan
    return Page(rows_of(pa.concat_tables(parts)) if parts else [], next_row)


def count(index: pa.Table, where: Any, *, scan: int = 65_536) -> int:
    """How many chains pass the filter, exactly; `scan` rows are looked at in one step."""
    filters.check(index.schema, where)
    found = 0
    for at in range(0, index.num_rows, scan):
        require_time()
        found += int(pc.sum(filters.match(index.slice(at, scan), where)).as_py() or 0)
    return found


def one(index: pa.Table, chain_id: str) -> dict[str, Any] | None:
    """A chain's row with all that describes it, or None."""
    row = pc.index(index["chain_id"], pa.scalar(chain_id, index["chain_id"].type)).as_py()
    if row < 0:
        return None
    return rows_of(index.select(columns_of(index, None)).slice(row, 1))[0]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with values JSON has: dates as text, no NaN, float32 in its own digits."""
    lists = [_values(table[name]) for name in table.column_names]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*lists, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_date(column.type):
        return [value and value.isoformat() for value in values]
    if pa.types.is_floating(column.type):
        kind = column.type.to_pandas_dtype()
        return [None if v is None or not math.isfinite(v) else float(str(kind(v))) for v in values]
    return values

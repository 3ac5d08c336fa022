"""Pages of chains: the rows of a snapshot's index that pass a filter."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service import filters
from evofeed.service.problems import Problem
from evofeed.service.work import require_time
from evofeed.store.inner import column_kinds

MAX_PAGE: Final = 1000


@dataclass(frozen=True, slots=True)
class Page:
    """Some chains, as a JSON array of objects, and the row to go on at (None at the end)."""

    json: bytes
    next_row: int | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The chains as Python has them."""
        rows: list[dict[str, Any]] = orjson.loads(self.json)
        return rows


def columns_of(
    index: pa.Table, wanted: list[str] | None, kinds: dict[str, str] | None = None
) -> list[str]:
    """The columns of a page: those asked for, or every one that describes a chain.

    Raises:
        Problem: 422, an unknown column.
    """
    there = list(column_kinds(index.schema) if kinds is None else kinds)
    if unknown := sorted(set(wanted or ()) - set(there)):
        raise Problem(
            422,
            "bad_column",
            f"no column {unknown[0][:60]!r} in this snapshot's index",
            next=f"choose from {', '.join(there)}",
        )
    return [name for name in there if name in wanted] if wanted else there


def page(
    index: pa.Table,
    where: Any,
    columns: list[str],
    start: int,
    limit: int,
    *,
    scan: int = 65_536,
    kinds: dict[str, str] | None = None,
) -> Page:
    """Up to `limit` chains from row `start` on, in index order.

    Args:
        index: the snapshot's index.
        where: filter (see `evofeed.service.filters`), or None.
        columns: columns of each chain.
        start: first row to look at.
        limit: rows at most.
        scan: rows looked at in one step, at most.
        kinds: `column_kinds` of the index, from whoever knows them already.
    """
    if where is None:
        rest = index.num_rows - start
        part = index.slice(start, limit).select(columns)
        return Page(rows_as_json(part), start + limit if rest > limit else None)
    if start >= index.num_rows:
        filters.check(index.schema, where)
    kinds = column_kinds(index.schema) if kinds is None else kinds
    parts: list[pa.RecordBatch] = []
    found, at = 0, start
    step = min(scan, 32 * limit)  # most filters are not rare: look at no more than is needed
    while at < index.num_rows:
        for piece in index.slice(at, step).to_batches():
            require_time()
            hits = pc.indices_nonzero(filters.match(piece, where, kinds))
            wanted = limit - found
            parts.append(piece.select(columns).take(hits.slice(0, wanted)))
            if len(hits) > wanted:
                return Page(_joined(parts), at + hits[wanted].as_py())
            found, at = found + len(hits), at + len(piece)
        step = min(scan, 4 * step)
    return Page(_joined(parts), None)


def _joined(parts: list[pa.RecordBatch]) -> bytes:
    return b"[" + b",".join(t for p in parts if (t := rows_as_json(p)[1:-1])) + b"]"


def count(index: pa.Table, where: Any, *, scan: int = 65_536) -> int:
    """How many chains pass the filter, exactly; `scan` rows are looked at in one step."""
    filters.check(index.schema, where)
    found = 0
    for at in range(0, index.num_rows, scan):
        require_time()
        found += int(pc.sum(filters.match(index.slice(at, scan), where)).as_py() or 0)
    return found


def one(index: pa.Table, chain_id: str, *, ordered: bool = False) -> dict[str, Any] | None:
    """A chain's row with all that describes it, or None; see `one_as_json`."""
    found = one_as_json(index, chain_id, ordered=ordered)
    return None if found is None else dict(orjson.loads(found))


def one_as_json(
    index: pa.Table, chain_id: str, *, ordered: bool = False, kinds: dict[str, str] | None = None
) -> bytes | None:
    """A chain's row as a JSON object with all that describes it, or None.

    Args:
        index: of the snapshot.
        chain_id: whose.
        ordered: its rows are sorted by id, so that halving finds it.
        kinds: as of `page`.
    """
    ids = index["chain_id"]
    if ordered:
        row = bisect.bisect_left(range(len(ids)), chain_id.encode(), key=lambda i: _utf8(ids, i))
        row = row if row < len(ids) and ids[row].as_py() == chain_id else -1
    else:
        row = pc.index(ids, pa.scalar(chain_id, ids.type)).as_py()
    if row < 0:
        return None
    return rows_as_json(index.slice(row, 1).select(columns_of(index, None, kinds)))[1:-1]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them; see `rows_as_json`."""
    rows: list[dict[str, Any]] = orjson.loads(rows_as_json(table))
    return rows


def rows_as_json(table: pa.Table | pa.RecordBatch) -> bytes:
    """Rows as JSON: dates as text, no NaN, float32 in its own digits."""
    names = table.column_names
    rows = zip(*(_values(table[name]) for name in names), strict=True)
    return orjson.dumps(
        [dict(zip(names, row)) for row in rows],  # noqa: B905 - zip itself made the rows
        option=orjson.OPT_SERIALIZE_NUMPY,
    )


def _values(column: Any) -> list[Any]:
    """Values that orjson writes; float32 stays NumPy's, which keeps its width."""
    if pa.types.is_float32(column.type) and not column.null_count:
        return list(np.asarray(column))
    if pa.types.is_dictionary(column.type):  # value by value it takes ten times as long
        column = pc.cast(column, column.type.value_type)
    values: list[Any] = column.to_pylist()
    return values


def _utf8(ids: pa.ChunkedArray, row: int) -> bytes:
    text: str = ids[row].as_py()
    return text.encode()

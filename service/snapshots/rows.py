"""Rows of a snapshot's index, or of its table of complexes, that pass a filter."""

from __future__ import annotations

import bisect
import datetime
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service.filters import evaluator as filters
from evofeed.service.problems import Problem
from evofeed.service.snapshots.snapshot import OpenSnapshot
from evofeed.service.work import require_time
from evofeed.store.inner import column_kinds

MAX_PAGE: Final = 1000
_STEP: Final = 65_536  # rows of the first piece, after which the clock is looked at
_LONGEST: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows, and the row to go on at (None at the end)."""

    rows: list[dict[str, Any]]
    next_row: int | None
    matched: int | None = None
    """All that pass, if they were counted."""


def columns_of(index: pa.Table, wanted: list[str] | None) -> list[str]:
    """The columns of a page: those asked for, or every one that describes a chain.

    Raises:
        Problem: 422, an unknown column.
    """
    there = list(column_kinds(index.schema))
    if unknown := sorted(set(wanted or ()) - set(there)):
        what = f"no column {unknown[0][:60]!r} in this snapshot's index"
        raise Problem(422, "bad_column", what, next=f"choose from {', '.join(there)}")
    return [name for name in there if name in wanted] if wanted else there


def matching(table: pa.Table, where: Any, text: str = "") -> np.ndarray:
    """Numbers of the rows that pass a filter, `i32[n]`.

    Args:
        table: an index.
        where: filter (see `evofeed.service.filters.evaluator`), or None.
        text: part of the chain's id, in any case.

    Raises:
        Problem: 422, the filter is malformed; 503, out of time.
    """
    parts = [_numbers(at, mask) for at, mask in _masks(table, where, 0, text)]
    return np.concatenate([np.zeros(0, np.int32), *parts])


def page(
    table: pa.Table,
    where: Any,
    columns: list[str],
    start: int,
    limit: int,
    *,
    counted: bool = False,
) -> Page:
    """Up to `limit` rows from row `start` on that pass a filter, in the table's order.

    Args:
        table: an index.
        where: filter, or None.
        columns: of each row.
        start: first row to look at.
        limit: rows at most.
        counted: also count all that pass, before `start` too.
    """
    found, matched = np.zeros(0, np.int32), 0
    for at, mask in _masks(table, where, 0 if counted else start):
        if len(found) <= limit and at + len(mask) > start:
            numbers = _numbers(at, mask)
            found = np.append(found, numbers[np.searchsorted(numbers, start) :])
        if len(found) > limit and not counted:
            break
        matched += pc.sum(mask).as_py() or 0
    rest = int(found[limit]) if len(found) > limit else None
    rows = rows_of(table.select(columns).take(pa.array(found[:limit])))
    return Page(rows, rest, matched if counted else None)


def _masks(
    table: pa.Table, where: Any, start: int, text: str = ""
) -> Iterator[tuple[int, pa.ChunkedArray | pa.Array]]:
    """Pieces of a table: the first row's number, and which of its rows pass."""
    filters.check(table.schema, where)
    kinds, at, step = column_kinds(table.schema), start, _STEP
    while at < table.num_rows:
        require_time()
        piece = table.slice(at, step)
        mask = filters.match(piece, where, kinds)
        if text:
            ids = piece[piece.column_names[0]]
            mask = pc.and_(mask, pc.match_substring(ids, text, ignore_case=True))
        yield at, mask
        at, step = at + step, min(2 * step, _LONGEST)  # each piece costs 0.3 ms besides its rows


def _numbers(at: int, mask: pa.ChunkedArray | pa.Array) -> np.ndarray:
    # Half of the time of Arrow's indices_nonzero.
    return (np.flatnonzero(mask.to_numpy(zero_copy_only=False)) + at).astype(np.int32)


def row_of(snapshot: OpenSnapshot, chain_id: str) -> int:
    """Where a chain is in a snapshot's index.

    Raises:
        Problem: 404.
    """
    ids = snapshot.index["chain_id"]
    if snapshot.ordered:
        row = bisect.bisect_left(range(len(ids)), chain_id, key=lambda i: ids[i].as_py())
        there = row < len(ids) and ids[row].as_py() == chain_id
    else:
        row = pc.index(ids, pa.scalar(chain_id, ids.type)).as_py()
        there = row >= 0
    if not there:
        hint = "ids are case-sensitive; look for it among the dataset's chains"
        raise Problem(404, "not_found", f"no chain {chain_id[:80]!r} in this snapshot", next=hint)
    return int(row)


def neighbours(ids: pa.ChunkedArray, row: int) -> tuple[str | None, str | None]:
    """The ids before and after that of a row."""
    before = ids[row - 1].as_py() if row > 0 else None
    return before, ids[row + 1].as_py() if row + 1 < len(ids) else None


def row_at(columns: dict[str, pa.ChunkedArray], number: int) -> dict[str, Any]:
    """One row of these columns as JSON has it."""
    return {
        name: _PLAIN.get(column.type.id, _same)(column[number].as_py())
        for name, column in columns.items()
    }


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON has them: dates as text, no NaN, float32 in its own digits."""
    rows: list[dict[str, Any]] = table.to_pylist()
    for name, kind in zip(table.schema.names, table.schema.types, strict=True):
        if kind.id in _PLAIN:
            for row in rows:
                row[name] = _PLAIN[kind.id](row[name])
    return rows


def _number(value: float | None, shown: Callable[[float], object] = float) -> float | None:
    return None if value is None or value != value else float(str(shown(value)))


def _same(value: Any) -> Any:
    return value


def _date(value: datetime.date | None) -> str | None:
    return None if value is None else value.isoformat()


_PLAIN: Final[dict[int, Callable[[Any], Any]]] = {
    pa.float32().id: functools.partial(_number, shown=np.float32),
    pa.float64().id: _number,
    pa.date32().id: _date,
    pa.date64().id: _date,
}

"""Pages of chains: the rows of a snapshot's index that pass a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service.filters.columns import Columns
from evofeed.service.filters.row_filter import RowFilter
from evofeed.service.problems import Problem
from evofeed.service.snapshots.snapshot import OpenSnapshot
from evofeed.service.work import require_thread, require_time
from evofeed.store.inner import column_kinds

MAX_PAGE: Final = 1000
_WORK: Final = 1 << 23  # comparisons between two looks at the clock: some 1 ms of them
_STEP: Final = 4096  # rows at least
_SCAN: Final = 131_072  # and at most


@dataclass(frozen=True, slots=True)
class Page:
    """Some chains, as a JSON array of objects, and the row to go on at (None at the end)."""

    json: bytes
    next_row: int | None
    matched: int | None = None
    """All that pass, if they were counted."""

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
    scan: int | None = None,
    ready: Columns | None = None,
    counted: bool = False,
) -> Page:
    """Up to `limit` chains from row `start` on, in index order.

    Args:
        index: the snapshot's index.
        where: filter (see `evofeed.service.filters.evaluator`), or None.
        columns: columns of each chain.
        start: first row to look at.
        limit: rows at most.
        scan: rows looked at in one step, at most; None: as many as
            take half a millisecond.
        ready: its columns, from whoever keeps them.
        counted: also count all that pass, before `start` too.
    """
    ready = Columns(index) if ready is None else ready
    num_rows = index.num_rows
    if where is None:
        stop = min(start + limit, num_rows)
        rest = stop if stop < num_rows else None
        return Page(ready.json(columns, slice(start, stop)), rest, num_rows if counted else None)
    passes = RowFilter(ready, where)
    scan = scan or _rows_at_once(passes)
    hits = [np.zeros(0, np.int64)]
    found, matched, at = 0, 0, 0 if counted else start
    step = scan if counted else min(scan, 64 * limit)  # most filters are not rare
    while at < num_rows and (counted or found <= limit):
        require_time()
        stop = min(at + step, num_rows)
        passing = passes(at, stop)
        matched += int(np.count_nonzero(passing)) if counted else 0
        if stop > start and found <= limit:
            rows = np.flatnonzero(passing) + at
            hits.append(rows[rows >= start] if at < start else rows)
            found += len(hits[-1])
        at, step = stop, min(scan, 4 * step)
    found_rows = np.concatenate(hits)
    rest = int(found_rows[limit]) if found > limit else None
    data = ready.json(columns, found_rows[:limit])
    return Page(data, rest, matched if counted else None)


def count(ready: Columns, where: Any, *, scan: int | None = None) -> int:
    """How many chains pass the filter, exactly; `scan` as of `page`."""
    return page(ready.table, where, [], 0, 0, scan=scan, ready=ready, counted=True).matched or 0


def _rows_at_once(passes: RowFilter) -> int:
    return min(_SCAN, max(_STEP, _WORK // max(1, passes.weight)))


def row_of(snapshot: OpenSnapshot, chain_id: str) -> int:
    """Where a chain is in a snapshot's index.

    Raises:
        Problem: 404.
    """
    if snapshot.ordered:
        row = snapshot.columns.find(chain_id)
    else:
        require_thread()
        ids = snapshot.index["chain_id"]
        row = pc.index(ids, pa.scalar(chain_id, ids.type)).as_py()
    if row < 0:
        raise Problem(
            404,
            "not_found",
            f"no chain {chain_id[:80]!r} in this snapshot",
            next="ids are case-sensitive; look for it among the dataset's chains",
        )
    return row


def row_as_json(ready: Columns, row: int) -> bytes:
    """All that describes a chain, as a JSON object."""
    return ready.json(list(ready.kinds), slice(row, row + 1))[1:-1]


def neighbours(ids: pa.ChunkedArray, row: int) -> tuple[str | None, str | None]:
    """The ids before and after that of a row."""
    before = ids[row - 1].as_py() if row > 0 else None
    return before, ids[row + 1].as_py() if row + 1 < len(ids) else None


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them; see `Columns.json`."""
    data = Columns(table).json(table.column_names, slice(0, table.num_rows))
    rows: list[dict[str, Any]] = orjson.loads(data)
    return rows

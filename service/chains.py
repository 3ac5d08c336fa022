"""Pages of chains: the rows of a snapshot's index that pass a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service import filters
from evofeed.service.columns import Columns
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
    ready: Columns | None = None,
) -> Page:
    """Up to `limit` chains from row `start` on, in index order.

    Args:
        index: the snapshot's index.
        where: filter (see `evofeed.service.filters`), or None.
        columns: columns of each chain.
        start: first row to look at.
        limit: rows at most.
        scan: rows looked at in one step, at most.
        ready: its columns, from whoever keeps them.
    """
    ready = Columns(index) if ready is None else ready
    if where is None:
        stop = min(start + limit, index.num_rows)
        return Page(
            ready.json(columns, slice(start, stop)), stop if stop < index.num_rows else None
        )
    if start >= index.num_rows:
        filters.check(index.schema, where)
    rows: list[np.ndarray] = []
    found, at = 0, start
    step = min(scan, 32 * limit)  # most filters are not rare: look at no more than is needed
    while at < index.num_rows:
        require_time()
        stop = min(at + step, index.num_rows)
        hits = np.flatnonzero(filters.match_rows(ready, where, at, stop)) + at
        wanted = limit - found
        rows.append(hits[:wanted])
        if len(hits) > wanted:
            return Page(ready.json(columns, np.concatenate(rows)), int(hits[wanted]))
        found, at = found + len(hits), stop
        step = min(scan, 4 * step)
    return Page(ready.json(columns, np.concatenate([np.zeros(0, int), *rows])), None)


def count(ready: Columns, where: Any, *, scan: int = 65_536) -> int:
    """How many chains pass the filter, exactly; `scan` rows are looked at in one step."""
    num_rows = ready.table.num_rows
    found = 0
    for at in range(0, max(1, num_rows), scan):  # a filter is checked also where there are none
        require_time()
        stop = min(at + scan, num_rows)
        found += int(np.count_nonzero(filters.match_rows(ready, where, at, stop)))
    return found


def one(index: pa.Table, chain_id: str) -> dict[str, Any] | None:
    """A chain's row with all that describes it, or None; see `one_as_json`."""
    found = one_as_json(index, chain_id)
    return None if found is None else dict(orjson.loads(found))


def one_as_json(
    index: pa.Table, chain_id: str, *, ordered: bool = False, ready: Columns | None = None
) -> bytes | None:
    """A chain's row as a JSON object with all that describes it, or None.

    Args:
        index: of the snapshot.
        chain_id: whose.
        ordered: its rows are sorted by id, so that halving finds it.
        ready: as of `page`.
    """
    ready = Columns(index) if ready is None else ready
    if ordered:
        row = ready.find(chain_id)
    else:
        row = pc.index(index["chain_id"], pa.scalar(chain_id, index["chain_id"].type)).as_py()
    return None if row < 0 else ready.json(list(ready.kinds), slice(row, row + 1))[1:-1]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python has them; see `Columns.json`."""
    data = Columns(table).json(table.column_names, slice(0, table.num_rows))
    rows: list[dict[str, Any]] = orjson.loads(data)
    return rows

"""Which chains of a snapshot are asked for, in what order, and what they have in common.

A question is answered by row numbers of an index that never changes, so its answer is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service.filters import evaluator as filters
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.kept import Kept
from evofeed.service.work import require_time
from evofeed.store.inner import column_kinds, is_known, known_values, plain_values

SORTS: Final = (
    "chain_id", "num_res", "num_alignments", "num_templates", "resolution", "release_date",
    "method", "cluster_size",
)  # fmt: skip
"""Columns that a listing may be in the order of."""
_SCAN: Final = 65_536  # rows looked at between two looks at the clock
_KEPT_NBYTES: Final = 64 << 20  # of answers


@dataclass(frozen=True, slots=True)
class Question:
    """Chains of a snapshot.

    Attributes:
        dataset: its name.
        digest: of the snapshot.
        where: filter as canonical JSON, see `evofeed.service.filters.evaluator`.
        text: part of the chain's id, in any case.
    """

    dataset: str
    digest: str
    where: str = "null"
    text: str = ""

    def asking(self, where: Any) -> Question:
        """The same with another filter."""
        return replace(self, where=json.dumps(where, sort_keys=True))


class Finder:
    """Answers questions, and keeps the last answers."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept = Kept[tuple[Any, ...], Any](_KEPT_NBYTES, _size, share=1.0)

    def rows(self, question: Question) -> np.ndarray:
        """Rows of the index that the question is about, in its order, `i32[n]`.

        Raises:
            Problem: 404, no such snapshot; 422, the filter is malformed; 503, out of time.
        """
        index = self._index(question)
        found: np.ndarray = self._kept.get((question,), lambda: _select(index, question))
        return found

    def ordered(self, question: Question, sort: str, descending: bool) -> np.ndarray:
        """The same in the order of a column; what is not known comes last."""
        index, rows = self._index(question), self.rows(question)
        if sort == "chain_id" and not descending:
            return rows  # an index is sorted by id
        found: np.ndarray = self._kept.get(
            (question, sort, descending), lambda: _in_order(index, rows, sort, descending)
        )
        return found

    def counts(self, question: Question, column: str, edges: list[Any]) -> list[int]:
        """How many of the chains are in each bin of a numeric column."""
        index, rows = self._index(question), self.rows(question)

        def count() -> np.ndarray:
            values = known_values(index[column].take(pa.array(rows)), column, _kind(index, column))
            return np.histogram(values.to_numpy(), np.asarray(edges, np.float64))[0]

        return list(map(int, self._kept.get((question, column, "bins"), count)))

    def groups(self, question: Question, column: str, *, years: bool = False) -> dict[str, int]:
        """How many of the chains have each value of a column (each year of a date)."""
        index, rows = self._index(question), self.rows(question)

        def count() -> dict[str, int]:
            values = index[column].take(pa.array(rows))
            values = known_values(values, column, _kind(index, column))
            if years:
                values = pc.utf8_slice_codeunits(pc.cast(values, pa.utf8()), 0, 4)
            counted = pc.value_counts(values).to_pylist()
            return {str(item["values"]): int(item["counts"]) for item in counted}

        found: dict[str, int] = self._kept.get((question, column, "groups"), count)
        return found

    def _index(self, question: Question) -> pa.Table:
        return self._catalog.snapshot(question.dataset, question.digest).index


def _select(index: pa.Table, question: Question) -> np.ndarray:
    where = json.loads(question.where)
    filters.check(index.schema, where)
    parts = [np.zeros(0, np.int32)]
    for at in range(0, index.num_rows, _SCAN):
        require_time()
        piece = index.slice(at, _SCAN)
        mask = filters.match(piece, where)
        if question.text:
            ids = piece["chain_id"]
            mask = pc.and_(mask, pc.match_substring(ids, question.text, ignore_case=True))
        parts.append((pc.indices_nonzero(mask).to_numpy() + at).astype(np.int32))
    return np.concatenate(parts)


def _in_order(index: pa.Table, rows: np.ndarray, sort: str, descending: bool) -> np.ndarray:
    require_time()
    values = plain_values(index[sort].take(pa.array(rows)))
    known = is_known(values, sort, _kind(index, sort))
    values = pc.if_else(known, values, pa.scalar(None, values.type))
    table = pa.table({"value": values, "unknown": pc.invert(known), "row": pa.array(rows)})
    way = "descending" if descending else "ascending"
    keys = [("unknown", "ascending"), ("value", way), ("row", "ascending")]
    order = pc.sort_indices(table, sort_keys=keys)
    require_time()
    found: np.ndarray = rows[order.to_numpy()]
    return found


def _kind(index: pa.Table, column: str) -> str:
    return column_kinds(index.schema)[column]


def _size(value: Any) -> int:
    return 1000 + (int(value.nbytes) if isinstance(value, np.ndarray) else 100 * len(value))

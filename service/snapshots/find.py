"""Which chains or complexes of a snapshot are asked for, in what order, and how they spread.

A question is answered by row numbers of an index that never changes, so its answer is kept.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service.remembered import Kept
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.rows import matching
from evofeed.service.work import require_time
from evofeed.store.inner import column_kinds, is_known, known_values, plain_values

_ANSWERS: Final = 32  # 4 MB each where all of a million chains pass


@dataclass(frozen=True, slots=True)
class Question:
    """Chains or complexes of a snapshot.

    Attributes:
        dataset: its name.
        digest: of the snapshot.
        where: filter as canonical JSON, see `evofeed.service.filters.evaluator`.
        text: part of the id, in any case.
        complexes: it is about these.
    """

    dataset: str
    digest: str
    where: str = "null"
    text: str = ""
    complexes: bool = False

    def asking(self, where: Any) -> Question:
        """The same with another filter."""
        return replace(self, where=json.dumps(where, sort_keys=True))


class Finder:
    """Answers questions, and keeps the last answers."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept = Kept[tuple[Any, ...], Any](_ANSWERS)

    def rows(self, question: Question) -> np.ndarray:
        """Rows of the index that the question is about, in its order, `i32[n]`.

        Raises:
            Problem: 404, no such snapshot; 422, the filter is malformed; 503, out of time.
        """
        index = self._index(question)
        where, text = json.loads(question.where), question.text
        found: np.ndarray = self._kept.get((question,), lambda: matching(index, where, text=text))
        return found

    def ordered(self, question: Question, sort: str, descending: bool) -> np.ndarray:
        """The same in the order of a column; what is not known comes last."""
        index, rows = self._index(question), self.rows(question)
        if sort == index.column_names[0] and not descending:
            return rows  # a table is sorted by id
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
        if question.complexes:
            return self._catalog.assemblies(question.dataset, question.digest)
        return self._catalog.snapshot(question.dataset, question.digest).index


def _in_order(index: pa.Table, rows: np.ndarray, sort: str, descending: bool) -> np.ndarray:
    require_time()
    values = plain_values(index[sort].take(pa.array(rows))).combine_chunks()
    known = is_known(values, sort, _kind(index, sort))
    way = "descending" if descending else "ascending"
    order = pc.array_sort_indices(values.filter(known), order=way)  # stable
    require_time()
    mask = known.to_numpy(zero_copy_only=False)
    return np.concatenate([rows[mask][order.to_numpy()], rows[~mask]])


def _kind(index: pa.Table, column: str) -> str:
    return column_kinds(index.schema)[column]

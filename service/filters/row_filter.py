"""A filter of an index whose columns are made ready: what it asks of each column, asked once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from evofeed.service.filters.columns import Columns, Ranks
from evofeed.service.filters.evaluator import Evaluator
from evofeed.service.filters.spans import (
    EVERYTHING,
    Mask,
    Numbers,
    Rows,
    Spans,
    at_least,
    compared,
    in_order,
    inverted,
    spans,
    within,
)
from evofeed.service.work import require_thread

_LOOK: Final = 4  # masks between two looks at how many rows are not decided yet
_FEW: Final = 16  # of so many rows one: its number costs more than its place in a span


class RowFilter:
    """A filter that is checked once and asked of many spans of rows.

    Args:
        columns: of the index.
        node: as of `filters.match`.

    Attributes:
        weight: arrays that are made for each span, about.

    Raises:
        Problem: as `filters.match`.
    """

    def __init__(self, columns: Columns, node: Any) -> None:
        compiler = _Compiler(columns)
        found = True if node is None else compiler.compile(node)
        self._mask = _constant(found) if isinstance(found, bool) else found
        self.weight = compiler.weight

    def __call__(self, at: int, stop: int) -> np.ndarray:
        """Which of the rows from `at` to `stop` pass, `bool[stop - at]`."""
        return self._mask(slice(at, stop))


@dataclass(frozen=True, slots=True)
class _On:
    """What is asked of one column: the numbers that pass, and whether those not known do."""

    column: str
    numbers: Spans
    others: bool = False


_Node = _On | Mask | bool


class _Compiler(Evaluator):
    """An evaluator whose masks are functions of a span of rows, with NumPy."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns.table, columns.kinds)
        self._columns = columns
        self._first: int | None = None  # row of an ordered index with an id that is known
        self.weight = 0

    def compile(self, node: Any) -> Mask | bool:
        return self._mask(self.node(node, "where", 0))

    def every(self, masks: list[_Node]) -> _Node:
        return self._joined(masks, all)

    def some(self, masks: list[_Node]) -> _Node:
        return self._joined(masks, any)

    def _joined(self, nodes: list[_Node], combine: Callable[[Any], bool]) -> _Node:
        """What is asked of the same column becomes one; what is the same for all rows goes."""
        by_column: dict[str, list[_On]] = {}
        rest: list[_Node] = []
        for node in nodes:
            if isinstance(node, _On):
                by_column.setdefault(node.column, []).append(node)
            else:
                rest.append(node)
        for column, asked in by_column.items():
            if len(asked) == 1:
                rest += asked
                continue
            count = len(asked) if combine is all else 1
            numbers = at_least(count, [one.numbers for one in asked])
            rest.append(_On(column, numbers, combine(one.others for one in asked)))
        if len(rest) == 1:
            return rest[0]
        masks = [self._mask(node) for node in rest]
        ends = combine is any  # what one such mask decides for all
        if any(mask is ends for mask in masks):
            return ends
        kept = [mask for mask in masks if not isinstance(mask, bool)]
        if len(kept) < 2:
            return kept[0] if kept else not ends
        return _together(kept, ends)

    def invert(self, mask: _Node) -> _Node:
        if isinstance(mask, _On):
            return _On(mask.column, inverted(mask.numbers), not mask.others)
        if isinstance(mask, bool):
            return not mask
        return lambda rows: np.logical_not(mask(rows))

    def constant(self, value: bool) -> _Node:
        return value

    def term(self, column: str, kind: str, op: str, value: Any) -> _Node:
        if column == "chain_id" and self._columns.ordered:
            return _On(column, self._ids(op, value))
        ready = self._columns.comparable(column)
        if isinstance(ready, Ranks):
            return _On(column, ready.numbers(op, value))
        by_arrow = ready is None or (kind == "boolean" and op in ("<", "<=", ">", ">="))
        numbers = None if by_arrow or ready is None else _numbers(ready, kind, op, value)
        return self._by_arrow(column, kind, op, value) if numbers is None else _On(column, numbers)

    def _ids(self, op: str, value: Any) -> Spans:
        """Rows of an index that is sorted by id; the empty one is not known."""
        if self._first is None:
            self._first = self._columns.place("")[1]
        if op == "known":
            return spans([(self._first, np.inf)])
        wanted = value if op == "in" else [value]
        return in_order(op, [self._columns.place(one) for one in wanted], self._first)

    def _mask(self, node: _Node) -> Mask | bool:
        if not isinstance(node, _On):
            return node
        self.weight += 1
        numbers = node.numbers
        if node.column == "chain_id" and self._columns.ordered:
            return lambda rows: within(numbers, rows)
        ready = self._columns.comparable(node.column)
        line = ready.line if isinstance(ready, Ranks) else ready
        assert line is not None  # `term` has made it
        return line.passing(numbers, node.others)

    def _by_arrow(self, column: str, kind: str, op: str, value: Any) -> Mask:
        require_thread()  # Arrow reads the file where it is mapped
        table = self._table.select([column])
        self.weight += 8

        def mask(rows: Rows) -> np.ndarray:
            if isinstance(rows, slice):
                part = table.slice(rows.start, rows.stop - rows.start)
            else:
                part = table.take(rows)
            piece = Evaluator(part, self._kinds)
            found: np.ndarray = piece.term(column, kind, op, value).to_numpy(zero_copy_only=False)
            return found.copy() if not found.flags.writeable else found

        return mask


def _constant(value: bool) -> Mask:
    def mask(rows: Rows) -> np.ndarray:
        return np.full(rows.stop - rows.start if isinstance(rows, slice) else len(rows), value)

    return mask


def _together(masks: list[Mask], ends: bool) -> Mask:
    """Rows that any of the masks lets pass (`ends` True), or that all do (False)."""
    combine = np.logical_or if ends else np.logical_and

    def mask(rows: Rows) -> np.ndarray:
        found = masks[0](rows)
        for done, other in enumerate(masks[1:], 2):
            combine(found, other(rows), out=found)
            if done % _LOOK or done == len(masks):
                continue
            decided = np.count_nonzero(found)
            undecided = len(found) - decided if ends else decided
            if undecided * _FEW <= len(found):
                _go_on(found, rows, masks[done:], ends)
                break
        return found

    return mask


def _go_on(found: np.ndarray, rows: Rows, masks: list[Mask], ends: bool) -> None:
    """The same for the few rows that the masks before these have not decided."""
    places = np.flatnonzero(found != ends)
    few = places + rows.start if isinstance(rows, slice) else rows[places]
    for mask in masks:
        if not len(places):
            return
        undecided = mask(few) != ends
        found[places[~undecided]] = ends
        places, few = places[undecided], few[undecided]


def _numbers(ready: Numbers, kind: str, op: str, value: Any) -> Spans | None:
    """The numbers that pass a comparison; None where they are no such set."""
    if op == "known":
        return EVERYTHING
    if op != "in":
        place = _place(ready.values.dtype, kind, value)
        return None if place is None else compared(op, *place)
    places = [_place(ready.values.dtype, kind, one) for one in value]
    there = [place for place in places if place is not None]
    return spans(there) if len(there) == len(places) else None


def _place(dtype: np.dtype[Any], kind: str, value: Any) -> tuple[float, float] | None:
    """Where a value begins, and where what is greater does: the same if no row can have it."""
    if kind != "number":  # integers beside a number that may have a fraction
        return math.ceil(value), math.floor(value) + 1
    if abs(value) > np.finfo(dtype).max:
        return None
    own = dtype.type(value)  # in the column's own type, as Arrow compares
    return float(own), float(np.nextafter(own, dtype.type(np.inf)))

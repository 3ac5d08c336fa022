"""Which chains: a typed filter, evaluated exactly on the Arrow index.

A filter is JSON, never text in a query language:

    {"all": [{"column": "num_res", "op": "<=", "value": 384},
             {"not": {"column": "method", "op": "in", "value": ["SOLUTION NMR"]}}]}

Logic is two-valued: a comparison with an unknown value (resolution 0, empty
date, cluster size -1, null) is false; `{"op": "known"}` asks for that itself.
"""

from __future__ import annotations

import bisect
import datetime
import functools
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from evofeed.service.columns import ANY_CASE, Columns, Ranks
from evofeed.service.problems import Problem
from evofeed.service.work import require_thread
from evofeed.store.inner import column_kinds, is_known, plain_values

MAX_NODES: Final = 200
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 10_000

_NAMES: Final = {
    "==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal",
}  # fmt: skip
_COMPARE: Final = {op: getattr(pc, name) for op, name in _NAMES.items()}
_OPERATORS: Final = {op: getattr(np, name) for op, name in _NAMES.items()}
_FEW: Final = 8  # values of a list that cost as much as one comparison
_Mask = Callable[[slice], np.ndarray]
OPERATORS: Final = [*_COMPARE, "in", "known", "all", "any", "not"]


def match(
    table: pa.Table | pa.RecordBatch, node: Any, kinds: dict[str, str] | None = None
) -> pa.ChunkedArray | pa.Array:
    """A boolean for each row of the index: does the chain pass?

    Args:
        table: index rows.
        node: the filter, as parsed JSON; None passes every row.
        kinds: `column_kinds` of it, from whoever knows it already.

    Raises:
        Problem: the filter is malformed, too large, or names an unknown column; says where.
    """
    if node is None:
        return pa.repeat(pa.scalar(True), table.num_rows)
    return _Evaluator(table, kinds).node(node, "where", 0)


class RowFilter:
    """A filter of an index whose columns are made ready, checked once and asked of many spans.

    Args:
        columns: of the index.
        node: as of `match`.

    Attributes:
        weight: comparisons for each row, as it were.

    Raises:
        Problem: as `match`.
    """

    def __init__(self, columns: Columns, node: Any) -> None:
        compiler = _Compiler(columns)
        self._mask: _Mask = compiler.constant(True) if node is None else compiler.compile(node)
        self.weight = compiler.weight

    def __call__(self, at: int, stop: int) -> np.ndarray:
        """Which of the rows from `at` to `stop` pass, `bool[stop - at]`."""
        return self._mask(slice(at, stop))


def check(schema: pa.Schema, node: Any) -> None:
    """Refuse a malformed filter, without rows.

    Raises:
        Problem: as `match`.
    """
    match(schema.empty_table(), node)


class _Evaluator:
    """One walk over a filter; counts nodes so that no filter is endless."""

    def __init__(self, table: pa.Table | pa.RecordBatch, kinds: dict[str, str] | None) -> None:
        self._table = table
        self._kinds = column_kinds(table.schema) if kinds is None else kinds
        self._nodes = 0

    def node(self, node: Any, where: str, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise _bad(where, f"more than {MAX_NODES} terms or {MAX_DEPTH} levels")
        if not isinstance(node, dict):
            raise _bad(where, f"expected an object, got {_shown(node)}")
        if set(node) == {"not"}:
            return self.invert(self.node(node["not"], f"{where}.not", depth + 1))
        for word, combine, empty in (("all", self.every, True), ("any", self.some, False)):
            if set(node) == {word}:
                return self._combine(node[word], combine, empty, f"{where}.{word}", depth)
        return self._compare(node, where)

    def _combine(self, nodes: Any, combine: Any, empty: bool, where: str, depth: int) -> Any:
        if not isinstance(nodes, list):
            raise _bad(where, f"expected a list, got {_shown(nodes)}")
        masks = [self.node(child, f"{where}[{i}]", depth + 1) for i, child in enumerate(nodes)]
        if not masks:
            return self.constant(empty)
        return combine(masks) if len(masks) > 1 else masks[0]

    def every(self, masks: list[Any]) -> Any:
        return functools.reduce(pc.and_, masks)

    def some(self, masks: list[Any]) -> Any:
        return functools.reduce(pc.or_, masks)

    def invert(self, mask: Any) -> Any:
        return pc.invert(mask)

    def constant(self, value: bool) -> Any:
        return pa.repeat(pa.scalar(value), self._table.num_rows)

    def _compare(self, node: dict[str, Any], where: str) -> Any:
        column, op = node.get("column"), node.get("op")
        kind = self._kinds.get(column) if isinstance(column, str) else None
        if kind is None:
            raise _bad(f"{where}.column", f"{_shown(column)} is none of {sorted(self._kinds)}")
        if set(node) - {"column", "op", "value"}:
            raise _bad(where, f"unknown members {sorted(set(node) - {'column', 'op', 'value'})}")
        if op == "known" and "value" in node:
            raise _bad(f"{where}.value", "`known` takes no value")
        if op not in ("known", "in") and (not isinstance(op, str) or op not in _COMPARE):
            raise _bad(f"{where}.op", f"{_shown(op)} is none of {[*_COMPARE, 'in', 'known']}")
        value = node.get("value")
        if op == "in":
            if not isinstance(value, list) or len(value) > MAX_VALUES:
                raise _bad(f"{where}.value", f"expected a list of at most {MAX_VALUES} values")
            value = [_value(item, kind, f"{where}.value[{i}]") for i, item in enumerate(value)]
        elif op != "known":
            value = _value(value, kind, f"{where}.value")
        return self.term(str(column), kind, str(op), _lower(value) if column in ANY_CASE else value)

    def term(self, column: str, kind: str, op: str, value: Any) -> Any:
        """Which rows pass a comparison that was checked; `value` is a list for `in`."""
        raw = self._table[column]
        if isinstance(raw, pa.DictionaryArray) and len(raw) > 2 * len(raw.dictionary):
            words = pa.record_batch([raw.dictionary], names=[column])
            passes = _Evaluator(words, self._kinds).term(column, kind, op, value)
            return pc.fill_null(pc.take(passes, raw.indices), False)
        values = plain_values(raw)
        known = is_known(values, column, kind)
        if op == "known":
            return known
        values = pc.utf8_lower(values) if column in ANY_CASE else values
        if op == "in":
            return pc.and_(known, _in(values, value, kind))
        left, right = _comparable(values, value, kind)
        matching = _COMPARE[op](left, right)
        return pc.and_(known, pc.fill_null(matching, False) if left.null_count else matching)


class _Compiler(_Evaluator):
    """The same as functions of a span of rows, with NumPy, on columns that are made ready."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns.table, columns.kinds)
        self._columns = columns
        self.weight = 0

    def compile(self, node: Any) -> _Mask:
        mask: _Mask = self.node(node, "where", 0)
        return mask

    def every(self, masks: list[_Mask]) -> _Mask:
        return lambda rows: _joined(np.logical_and, masks, rows)

    def some(self, masks: list[_Mask]) -> _Mask:
        return lambda rows: _joined(np.logical_or, masks, rows)

    def invert(self, mask: _Mask) -> _Mask:
        return lambda rows: np.logical_not(mask(rows))

    def constant(self, value: bool) -> _Mask:
        return lambda rows: np.full(rows.stop - rows.start, value)

    def term(self, column: str, kind: str, op: str, value: Any) -> _Mask:
        if column == "chain_id" and self._columns.ordered:
            return self._by_id(op, value)
        ready = self._columns.comparable(column)
        self.weight += 1 + (len(value) // _FEW if op == "in" else 0)
        if isinstance(ready, Ranks):
            return _by_rank(ready, op, value)
        if ready is None or (kind == "boolean" and op in ("<", "<=", ">", ">=")):
            return self._by_arrow(column, kind, op, value)
        if op == "known":
            known = ready.known
            return self.constant(True) if known is None else lambda rows: known[rows]
        if kind == "integer" and op != "in":
            found = _by_integer(ready.values, op, value) or self.constant(op == "!=")
        else:
            found = _by_value(ready.values, kind, op, value)
        return found if ready.known is None else _among(ready.known, found)

    def _by_id(self, op: str, value: Any) -> _Mask:
        """Of an index that is sorted by it: spans of rows, found by halving."""
        every = (self._columns.place("")[1], self._table.num_rows)  # the empty one is not known
        if op == "known":
            return _within([every])
        if op == "in":
            places = [self._columns.place(item) for item in value]
            return _within([(max(low, every[0]), high) for low, high in places])
        low, high = self._columns.place(value)
        spans = {
            "==": [(low, high)], "!=": [(0, low), (high, every[1])], "<": [(0, low)],
            "<=": [(0, high)], ">": [(high, every[1])], ">=": [(low, every[1])],
        }  # fmt: skip
        return _within([(max(begin, every[0]), end) for begin, end in spans[op]])

    def _by_arrow(self, column: str, kind: str, op: str, value: Any) -> _Mask:
        require_thread()  # Arrow reads the file where it is mapped
        table = self._table.select([column])

        def mask(rows: slice) -> np.ndarray:
            piece = _Evaluator(table.slice(rows.start, rows.stop - rows.start), self._kinds)
            found: np.ndarray = piece.term(column, kind, op, value).to_numpy(zero_copy_only=False)
            return found

        return mask


def _joined(combine: Any, masks: list[_Mask], rows: slice) -> np.ndarray:
    found: np.ndarray = combine(masks[0](rows), masks[1](rows))
    for mask in masks[2:]:
        combine(found, mask(rows), out=found)
    return found


def _within(spans: list[tuple[int, int]]) -> _Mask:
    def mask(rows: slice) -> np.ndarray:
        found = np.zeros(rows.stop - rows.start, bool)
        for begin, end in spans:
            if begin < rows.stop and end > rows.start:
                found[max(0, begin - rows.start) : max(0, end - rows.start)] = True
        return found

    return mask


def _among(known: np.ndarray, found: _Mask) -> _Mask:
    return lambda rows: found(rows) & known[rows]


def _by_integer(values: np.ndarray, op: str, value: float) -> _Mask | None:
    """Integers beside a number that may have a fraction, as integers; None: no integer is it."""
    compare, bound = _OPERATORS[op], math.floor(value)
    if bound != value:  # below 384.5 is up to 384, above it is not up to 384
        if op in ("==", "!="):
            return None
        compare = np.less_equal if op in ("<", "<=") else np.greater
    return lambda rows: compare(values[rows], bound)


def _by_value(values: np.ndarray, kind: str, op: str, value: Any) -> _Mask:
    if op == "in" and kind == "integer":
        value = [int(one) for one in value if one == math.floor(one)]
        wanted = np.array(value, np.int64)
        return lambda rows: np.isin(values[rows], wanted)
    with np.errstate(over="ignore"):
        wanted = np.array(value, values.dtype)  # in the column's own type, as `_comparable`
    if op == "in":
        return lambda rows: np.isin(values[rows], wanted)
    compare = _OPERATORS[op]
    return lambda rows: compare(values[rows], wanted)


def _by_rank(ready: Ranks, op: str, value: Any) -> _Mask:
    codes, first, end = ready.codes, ready.known, len(ready.words)
    if op == "known":
        return lambda rows: codes[rows] >= first
    if op == "in":
        places = [bisect.bisect_left(ready.words, item) for item in value]
        there = [i for i, v in zip(places, value, strict=True) if ready.words[i : i + 1] == [v]]
        there = [place for place in there if place >= first]
        if len(there) == 1:
            return lambda rows: codes[rows] == there[0]
        return lambda rows: np.isin(codes[rows], np.array(there, np.int32))
    low, high = bisect.bisect_left(ready.words, value), bisect.bisect_right(ready.words, value)
    if op == "!=":
        return lambda rows: _but(codes[rows], first, low, high)
    spans = {"==": (low, high), "<": (0, low), "<=": (0, high), ">": (high, end), ">=": (low, end)}
    begin, stop = max(spans[op][0], first), spans[op][1]
    if stop <= begin:
        return lambda rows: np.zeros(rows.stop - rows.start, bool)
    if stop == begin + 1:
        return lambda rows: codes[rows] == begin
    if stop == end:
        return lambda rows: codes[rows] >= begin
    return lambda rows: (codes[rows] >= begin) & (codes[rows] < stop)


def _but(codes: np.ndarray, first: int, low: int, high: int) -> np.ndarray:
    found: np.ndarray = (codes >= first) & ((codes < low) | (codes >= high))
    return found


def _in(values: Any, items: list[Any], kind: str) -> Any:
    if kind == "integer":
        return pc.is_in(pc.cast(values, pa.float64()), pa.array(items, pa.float64()))
    if pa.types.is_date(values.type):
        items = [datetime.date.fromisoformat(item) for item in items]
    return pc.is_in(values, pa.array(items, values.type))


def _value(value: Any, kind: str, where: str) -> Any:
    if kind in ("integer", "number"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad(where, f"expected a number, got {_shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise _bad(where, "expected a finite number")
        if abs(value) >= 2**53:
            raise _bad(where, f"{_shown(value)} is out of range")
        return float(value)
    if kind == "boolean":
        if not isinstance(value, bool):
            raise _bad(where, f"expected true or false, got {_shown(value)}")
        return value
    if not isinstance(value, str) or len(value) > 256 or not value.isprintable():
        raise _bad(where, f"expected printable text of at most 256 letters, got {_shown(value)}")
    if kind == "date":
        try:
            return datetime.date.fromisoformat(value).isoformat()
        except ValueError:
            raise _bad(where, f"expected an ISO date, got {_shown(value)}") from None
    return value


def _comparable(values: Any, value: Any, kind: str) -> tuple[Any, Any]:
    if kind == "integer":  # float64 holds them all, and a bound such as 384.5 too
        return pc.cast(values, pa.float64()), pa.scalar(value, pa.float64())
    if pa.types.is_date(values.type):
        return values, pa.scalar(datetime.date.fromisoformat(value), values.type)
    # In the column's own type: 1.7 asked is the 1.7 that was stored, in float32 as well.
    return values, pa.scalar(value, values.type)


def _lower(value: Any) -> Any:
    if isinstance(value, list):
        return [_lower(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bad(where: str, what: str) -> Problem:
    return Problem(
        422,
        "bad_filter",
        f"{where}: {what}",
        next="GET /v1/config lists the operators, the snapshot's `columns` the columns",
        errors=[{"where": where, "what": what}],
    )

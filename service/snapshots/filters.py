"""Typed filters of chains, evaluated exactly on the Arrow index.

A filter is JSON, never text in a query language:

    {"all": [{"column": "num_res", "op": "<=", "value": 384},
             {"not": {"column": "method", "op": "in", "value": ["SOLUTION NMR"]}}]}

Logic is two-valued: a comparison with an unknown value (resolution 0, empty
date, cluster size -1, null) is false; `{"op": "known"}` asks for that itself.
"""

from __future__ import annotations

import datetime
import functools
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.configs import is_iso_date
from evofeed.service.problems import Problem
from evofeed.store.inner import column_kinds, is_known

ANY_CASE: Final = ("method",)
"""Columns that are compared as mmCIF files write them, or in lower case."""
MAX_NODES: Final = 200
MAX_DEPTH: Final = 16
MAX_VALUES: Final = 10_000

_NAMES: Final = {
    "==": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater",
    ">=": "greater_equal",
}  # fmt: skip
_COMPARE: Final = {op: getattr(pc, name) for op, name in _NAMES.items()}
OPERATORS: Final = [*_COMPARE, "in", "known", "all", "any", "not"]


def match(
    table: pa.Table | pa.RecordBatch, node: Any, kinds: dict[str, str] | None = None
) -> pa.ChunkedArray | pa.Array:
    """A mask of the index's rows that pass; a filter of None passes every row.

    `kinds` are its `column_kinds`, if the caller has them.

    Raises:
        Problem: the filter is malformed, too large, or names an unknown column; says where.
    """
    if node is None:
        return pa.repeat(pa.scalar(True), table.num_rows)
    return _Evaluator(table, kinds).node(node, "where", 0)


def check(schema: pa.Schema, node: Any) -> None:
    """Refuse a malformed filter before rows are read (raises Problem: as `match`)."""
    match(schema.empty_table(), node)


class _Evaluator:
    """Evaluation of one filter, with a limit on its nodes."""

    def __init__(self, table: pa.Table | pa.RecordBatch, kinds: dict[str, str] | None) -> None:
        self._table = table
        self._kinds = column_kinds(table.schema) if kinds is None else kinds
        self._nodes = 0

    def node(self, node: Any, where: str, depth: int) -> Any:
        """The mask of one node of the filter."""
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise _bad(where, f"more than {MAX_NODES} terms or {MAX_DEPTH} levels")
        if not isinstance(node, dict):
            raise _bad(where, f"expected an object, got {_shown(node)}")
        if set(node) == {"not"}:
            return pc.invert(self.node(node["not"], f"{where}.not", depth + 1))
        for word, combine, empty in (("all", pc.and_, True), ("any", pc.or_, False)):
            if set(node) == {word}:
                return self._combine(node[word], combine, empty, f"{where}.{word}", depth)
        return self._compare(node, where)

    def _combine(self, nodes: Any, combine: Any, empty: bool, where: str, depth: int) -> Any:
        if not isinstance(nodes, list):
            raise _bad(where, f"expected a list, got {_shown(nodes)}")
        masks = [self.node(child, f"{where}[{i}]", depth + 1) for i, child in enumerate(nodes)]
        if not masks:
            return pa.repeat(pa.scalar(empty), self._table.num_rows)
        return functools.reduce(combine, masks)

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
        """Mask of the rows that pass a checked comparison; `value` is a list for `in`."""
        raw = self._table[column]
        if not pa.types.is_dictionary(raw.type):
            return _passes(raw, column, kind, op, value)
        chunks = raw.chunks if isinstance(raw, pa.ChunkedArray) else [raw]
        masks = [  # each word is compared once
            pc.fill_null(
                pc.take(_passes(chunk.dictionary, column, kind, op, value), chunk.indices), False
            )
            for chunk in chunks
        ]
        return pa.chunked_array(masks, pa.bool_())


def _passes(values: Any, column: str, kind: str, op: str, value: Any) -> Any:
    present = is_known(values, column, kind)
    if op == "known":
        return present
    values = pc.utf8_lower(values) if column in ANY_CASE else values
    if op == "in":
        return pc.and_(present, _in(values, value, kind))
    left, right = _comparable(values, value, kind)
    matching = _COMPARE[op](left, right)
    return pc.and_(present, pc.fill_null(matching, False) if left.null_count else matching)


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
    if kind == "date" and not is_iso_date(value):
        raise _bad(where, f"expected an ISO date, got {_shown(value)}")
    return value


def _comparable(values: Any, value: Any, kind: str) -> tuple[Any, Any]:
    if kind == "integer":  # float64 represents them and bounds such as 384.5
        return pc.cast(values, pa.float64()), pa.scalar(value, pa.float64())
    if pa.types.is_date(values.type):
        return values, pa.scalar(datetime.date.fromisoformat(value), values.type)
    # In the column's type, so that 1.7 equals a stored float32 1.7.
    return values, pa.scalar(value, values.type)


def _lower(value: Any) -> Any:
    if isinstance(value, list):
        return [_lower(item) for item in value]
    return value.lower() if isinstance(value, str) else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bad(where: str, message: str) -> Problem:
    message = f"{where}: {message}"
    hint = "GET /v1/config lists the operators, GET .../stats the columns"
    errors = [{"where": where, "what": message}]
    return Problem(422, "bad_filter", message, next=hint, errors=errors)

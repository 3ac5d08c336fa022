"""Rows of an index as JSON: the same as Python's values, whatever pieces the columns are in."""

from __future__ import annotations

import datetime
import json
import threading

import numpy as np
import orjson
import pyarrow as pa
import pytest

from evofeed.service.filters.columns import Columns, _Texts
from evofeed.service.filters.spans import Numbers

NAMES = [f"{i:03d}_{'é' if i == 7 else 'A'}" for i in range(20)]
TABLE = pa.table(
    {
        "chain_id": NAMES,
        "num_res": pa.array(range(20), pa.int32()),
        "resolution": pa.array([i / 3 for i in range(20)], pa.float32()),
        "gaps": pa.array([None if i % 4 == 0 else i / 7 for i in range(20)], pa.float32()),
        "nan": pa.array([float("nan") if i % 2 else 1.5 for i in range(20)]),
        "method": pa.array([None, "x", 'a"b,', "x"] * 5).dictionary_encode(),
        "is_distillation": [i % 3 == 0 for i in range(20)],
        "day": [datetime.date(2020, 1, 1 + i) for i in range(20)],
    }
)
PIECES = {
    "one": TABLE,
    "three": pa.concat_tables([TABLE.slice(0, 7), TABLE.slice(7, 0), TABLE.slice(7, 13)]),
    "sliced": pa.concat_tables([TABLE.slice(19), TABLE]).combine_chunks().slice(1),
}


def oracle(table: pa.Table) -> list[dict[str, object]]:
    def plain(value: object) -> object:
        if isinstance(value, float):
            return None if value != value else json.loads(orjson.dumps(value))
        return value.isoformat() if isinstance(value, datetime.date) else value

    rows = [{name: plain(v) for name, v in row.items()} for row in table.to_pylist()]
    for name in ("resolution", "gaps"):  # float32 in its own digits
        for row in rows:
            if row[name] is not None:
                row[name] = json.loads(str(np.float32(row[name])))  # type: ignore[arg-type]
    return rows


@pytest.mark.parametrize("kind", PIECES)
@pytest.mark.parametrize(
    "rows", [slice(0, 20), slice(5, 9), slice(4, 4), [3, 3, 19, 0], []], ids=str
)
def test_rows_are_what_python_has(kind: str, rows: slice | list[int]) -> None:
    table = PIECES[kind]
    asked = rows if isinstance(rows, slice) else np.array(rows, np.int64)
    found = json.loads(Columns(table).json(table.column_names, asked))
    there = oracle(TABLE)
    assert found == (there[rows] if isinstance(rows, slice) else [there[i] for i in rows])


@pytest.mark.parametrize("kind", PIECES)
def test_a_chain_is_found_by_halving(kind: str) -> None:
    columns = Columns(PIECES[kind])
    assert [columns.find(name) for name in NAMES] == list(range(20))
    assert [columns.find(name) for name in ("", "000", "000_B", "zzz", "007_e")] == [-1] * 5
    assert columns.place("007_e") == (7, 7) and columns.place("010_A") == (10, 11)
    assert _Texts(pa.chunked_array([], pa.string())).find(b"x") == -1


@pytest.mark.parametrize("rows", [0, 20])
def test_columns_are_made_ready_once_in_a_thread_of_their_own(rows: int) -> None:
    columns = Columns(TABLE.slice(0, rows), ordered=True)
    columns.prepare()
    columns.prepare()
    threads = [t for t in threading.enumerate() if t.name == "evofeed-columns"]
    assert len(threads) <= 1
    for thread in threads:
        thread.join()
    assert set(columns._comparable) == set(columns.kinds)
    ready = columns.comparable("num_res")
    assert isinstance(ready, Numbers) and (ready._buckets is not None) == (rows > 0)
    assert columns._ids is not None

"""What a filter asks of a column is a set of numbers: the same rows as one comparison at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evofeed.service.filters import evaluator as filters
from evofeed.service.filters.columns import Columns
from evofeed.service.filters.row_filter import RowFilter
from evofeed.service.filters.spans import (
    EVERYTHING,
    NOTHING,
    Numbers,
    at_least,
    compared,
    inverted,
    spans,
    within,
)
from evofeed.service.work import NeedsThread, run_here

ENDS = st.lists(st.sampled_from([-np.inf, *range(12)]), max_size=7, unique=True).map(sorted)
SETS = ENDS.map(lambda ends: np.array(ends, np.float64))


def holds(one: np.ndarray, number: float) -> bool:
    return sum(end <= number for end in one) % 2 == 1


@given(st.lists(SETS, min_size=1, max_size=5), st.data())
def test_numbers_in_so_many_of_some_sets(sets: list[np.ndarray], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(sets)))
    found = at_least(count, sets)
    assert (np.diff(found) > 0).all()
    for number in (-3.0, *np.arange(0, 12, 0.5)):
        assert holds(found, number) == (sum(holds(one, number) for one in sets) >= count)
        assert holds(inverted(sets[0]), number) != holds(sets[0], number)


def test_a_set_of_very_many_pieces() -> None:
    odd = spans((i, i + 1) for i in range(1, 2000, 2))
    tens = spans((i, i + 1) for i in range(0, 2000, 10))
    rows = np.arange(2000)
    assert (
        within(at_least(1, [odd, tens]), slice(0, 2000)).tolist()
        == ((rows % 2 == 1) | (rows % 10 == 0)).tolist()
    )
    assert len(at_least(2, [odd, tens])) == 0
    assert within(NOTHING, slice(3, 9)).sum() == 0 and within(EVERYTHING, slice(3, 9)).sum() == 6


@given(SETS, st.integers(0, 12), st.integers(0, 12))
def test_rows_in_a_set(one: np.ndarray, start: int, length: int) -> None:
    rows = range(start, start + length)
    wanted = [holds(one, row) for row in rows]
    assert within(one, slice(start, start + length)).tolist() == wanted
    assert within(one, np.array(rows, np.int64)).tolist() == wanted


def test_what_compares_so() -> None:
    for op, wanted in (("==", "2"), ("!=", "0134"), ("<", "01"), ("<=", "012"), (">", "34")):
        found = compared(op, 2, 3)
        assert "".join(str(i) for i in range(5) if holds(found, i)) == wanted
    assert [i for i in range(5) if holds(compared(">=", 2, 3), i)] == [2, 3, 4]


def columns_to_compare() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    count = 150_000  # more than there are buckets
    skewed = np.clip(rng.lognormal(9, 2, count), 0, 1e12)
    return {
        "short": rng.integers(0, 300, count).astype(np.int32),
        "uint8": rng.integers(0, 256, count).astype(np.uint8),
        "wide": skewed.astype(np.int64),
        "few values far apart": rng.choice([-5_000_000, 0, 7, 9_000_000], count),
        "float32": skewed.astype(np.float32),
        "float64": np.where(rng.random(count) < 0.3, 0.0, skewed),
        "below zero": rng.normal(0, 3, count).astype(np.float32),
        "both zeros": rng.choice([-1e30, -0.0, 0.0, 1e-30, 3.5], count).astype(np.float32),
        "from end to end": np.append(rng.normal(0, 1, count), [-1e308, 1e308, -0.0]),
        "int8": rng.integers(-128, 128, count).astype(np.int8),
        "uint64": rng.integers(0, 2**52, count).astype(np.uint64),
        "bool": rng.random(count) < 0.3,
        "one value": np.full(count, 7),
        "none": np.zeros(0, np.int32),
    }


COLUMNS = columns_to_compare()


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 40, 5000])
def test_rows_of_a_column_that_are_in_a_set(name: str, pieces: int) -> None:
    values = COLUMNS[name]
    rng = np.random.default_rng(pieces)
    numbers = np.arange(300.0) if name == "none" else values.astype(np.float64)
    ends = rng.choice(numbers, pieces)
    ends = np.unique(np.where(rng.random(pieces) < 0.5, ends, np.floor(ends + 1)))
    known = rng.random(len(values)) < 0.9
    for one in (ends, np.concatenate([EVERYTHING, ends]), ends[1::3]):
        inside = (np.searchsorted(one, values.astype(np.float64), "right") & 1).astype(bool)
        assert inside[:50].tolist() == [holds(one, float(v)) for v in values[:50]]
        for mask, others in ((None, False), (known, False), (known, True)):
            ready = Numbers(values, mask)
            found = ready.passing(one, others)
            wanted = inside if mask is None else np.where(mask, inside, others)
            if isinstance(found, bool):
                assert (wanted == found).all()
                continue
            count = len(values)
            assert np.array_equal(found(slice(0, count)), wanted)
            assert np.array_equal(found(slice(70, 5000)), wanted[70:5000])
            some = np.sort(rng.integers(0, max(count, 1), min(count, 500)))
            assert np.array_equal(found(some), wanted[some])


def test_a_set_in_many_pieces_waits_for_its_buckets() -> None:
    ready = Numbers(np.arange(100), None)
    many = spans((i, i + 1) for i in range(0, 50, 2))
    with pytest.raises(NeedsThread):
        run_here(lambda: ready.passing(many, False))
    ready.passing(many, False)
    run_here(lambda: ready.passing(many, False))


def a_table(count: int) -> pa.Table:
    rng = np.random.default_rng(3)
    return pa.table(
        {
            "chain_id": [f"{i:06d}_A" for i in range(count)],
            "num_res": rng.integers(1, 60, count).astype(np.int32),
            "resolution": rng.choice([0.0, 1.5, 2.25, 3.0], count).astype(np.float32),
            "cost": rng.integers(0, 10**7, count),
            "num_alignments": pa.array([None if i % 7 == 0 else i % 50 for i in range(count)]),
            "method": pa.array(rng.choice(["", "X-RAY", "nmr"], count)).dictionary_encode(),
            "is_distillation": rng.random(count) < 0.5,
        }
    )


TABLE = a_table(3000)


def a_term(r: random.Random) -> dict[str, Any]:
    column = r.choice(TABLE.column_names)
    values = {
        "chain_id": lambda: f"{r.randrange(3100):06d}_A",
        "num_res": lambda: r.randrange(62),
        "resolution": lambda: r.choice([0, 1.5, 2, 2.25, 3.0, 9]),
        "cost": lambda: TABLE["cost"][r.randrange(3000)].as_py(),
        "num_alignments": lambda: r.randrange(52),
        "method": lambda: r.choice(["x-ray", "NMR", "other", ""]),
        "is_distillation": lambda: r.random() < 0.5,
    }
    op = r.choice(["==", "!=", "in", "known", "<", "<=", ">", ">="])
    if op == "known":
        return {"column": column, "op": op}
    value = [values[column]() for _ in range(5)] if op == "in" else values[column]()
    return {"column": column, "op": op, "value": value}


def a_node(r: random.Random, depth: int, most: int) -> dict[str, Any]:
    kind = r.choice(["all", "any", "not", "term"]) if depth else "term"
    if kind == "term":
        return a_term(r)
    if kind == "not":
        return {"not": a_node(r, depth - 1, most)}
    return {kind: [a_node(r, depth - 1, most) for _ in range(r.randrange(most))]}


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 2**32), st.booleans())
def test_large_filters_agree_with_arrow(seed: int, ordered: bool) -> None:
    r = random.Random(seed)
    node = {r.choice(["all", "any"]): [a_node(r, r.randrange(3), 5) for _ in range(9)]}
    wanted = filters.match(TABLE, node).to_numpy()
    found = RowFilter(Columns(TABLE, ordered=ordered), node)
    assert np.array_equal(found(0, 3000), wanted)
    assert np.array_equal(found(17, 1234), wanted[17:1234])


def test_what_few_rows_are_left_for_is_asked_of_these_only() -> None:
    ready = Columns(TABLE, ordered=True)
    most = {"column": "num_res", "op": ">=", "value": 2}
    pairs = [
        {"all": [{"column": "num_res", "op": "<", "value": 3},
                 {"column": "cost", "op": "<", "value": 10**5 * i}]}
        for i in range(20)
    ]  # fmt: skip
    for node in ({"any": [most, *pairs]}, {"all": [{"not": one} for one in (most, *pairs)]}):
        wanted = filters.match(TABLE, node).to_numpy()
        assert 0 < wanted.sum() < 3000
        assert np.array_equal(RowFilter(ready, node)(0, 3000), wanted)

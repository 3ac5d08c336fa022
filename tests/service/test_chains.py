"""Chain pages and filters: exact, typed, pinned to their snapshot."""

from __future__ import annotations

import json
import operator
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.conftest import publish

from evofeed.service.problems import Problem
from evofeed.service.snapshots import filters
from evofeed.service.snapshots import rows as of_index
from evofeed.service.state import CursorSigner
from evofeed.store import Dataset


@pytest.fixture(scope="module")
def rows(served) -> list[dict[str, Any]]:
    """The newest index, row by row."""
    return Dataset.open(served.folder).index.to_pylist()


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [row["chain_id"] for row in answer.json()["chains"]]


QUERIES = {
    "min_length=40&max_length=80": lambda r: 40 <= r["num_res"] <= 80,
    "min_depth=10&max_depth=30": lambda r: 10 <= r["num_alignments"] <= 30,
    "max_resolution=3": lambda r: 0 < r["resolution"] <= 3,
    "released_from=2015-01-01": lambda r: r["release_date"] >= "2015-01-01",
    "released_before=2015-01-01": lambda r: "" < r["release_date"] < "2015-01-01",
    "method=SOLUTION NMR&method=electron microscopy": lambda r: (
        r["method"] in ("SOLUTION NMR", "ELECTRON MICROSCOPY")
    ),
    "is_distillation=true": lambda r: r["is_distillation"],
    "has_structure=true": lambda r: r["has_structure"],
    "": lambda r: True,
}


@pytest.mark.parametrize("query", QUERIES)
def test_a_filter_gives_exactly_the_rows_a_loop_would_and_its_page_shows_them(
    served, rows, query
) -> None:
    answer = served.get(f"/snapshots/{served.second}/chains?{query}&limit=1000&count=true")
    expected = [r["chain_id"] for r in rows if QUERIES[query](r)]
    assert ids(answer) == expected
    assert answer.json()["matched"] == len(expected)
    text = served.client.get(f"/ui/datasets/demo?{query}").text
    assert re.findall(r'/chains/(\w+)">\1</a>', text) == expected[:50]
    assert f'data-count="{len(expected)}"' in text


def test_pages_follow_each_other_without_gap_or_repeat(served, rows) -> None:
    seen, cursor = [], None
    while True:
        params = {"limit": 7, "min_length": 30} | ({"cursor": cursor} if cursor else {})
        answer = served.get(f"/snapshots/{served.second}/chains", params=params)
        seen += ids(answer)
        if not (cursor := answer.json()["next"]):
            break
    assert seen == [r["chain_id"] for r in rows if r["num_res"] >= 30]


def test_pages_of_a_ref_stay_on_the_snapshot_they_began_with(start, tmp_path) -> None:
    first = publish(tmp_path / "d", range(10))
    client = start(datasets={"demo": str(tmp_path / "d")})
    page = client.get("/v1/datasets/demo/chains?limit=6").json()
    publish(tmp_path / "d", range(20), expect=first)
    rest = client.get("/v1/datasets/demo/chains", params={"limit": 6, "cursor": page["next"]})
    assert rest.json()["snapshot"] == first
    assert len(ids(rest)) == 4 and rest.json()["next"] is None


def test_a_cursor_of_another_filter_or_snapshot_or_made_up_is_refused(served) -> None:
    path = f"/snapshots/{served.second}/chains"
    cursor = served.get(f"{path}?limit=5").json()["next"]
    for url in (
        f"{path}?min_length=9&cursor={cursor}",
        f"/snapshots/{served.first}/chains?cursor={cursor}",
        f"{path}?cursor=%00",
    ):
        answer = served.get(url)
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_cursor")


def test_a_search_with_a_json_body_says_the_same(served, rows) -> None:
    where = {
        "any": [
            {"all": [{"column": "num_res", "op": ">", "value": 90}]},
            {"not": {"column": "method", "op": "known"}},
        ]
    }
    answer = served.client.post(
        f"{served.base}/snapshots/{served.second}/chains/search",
        json={"where": where, "limit": 1000, "columns": ["chain_id", "method"]},
    )
    assert ids(answer) == [r["chain_id"] for r in rows if r["num_res"] > 90 or not r["method"]]
    assert set(answer.json()["chains"][0]) == {"chain_id", "method"}
    by_get = served.get(f"/snapshots/{served.second}/chains", params={"where": json.dumps(where)})
    assert ids(by_get) == ids(answer)


def test_one_chain_is_found_by_its_id_and_keeps_its_digits(served) -> None:
    row = served.get(f"/snapshots/{served.second}/chains/0007_A").json()
    assert row["chain_id"] == "0007_A"
    assert row["resolution"] in (0.0, 1.7, 2.95, 4.1)
    assert served.get(f"/snapshots/{served.second}/chains/0007_a").status_code == 404


TABLE = pa.table(
    {
        "chain_id": [f"{i}_A" for i in range(60)],
        "num_res": pa.array([i * 7 % 50 for i in range(60)], pa.int32()),
        "resolution": pa.array([(i % 5) * 0.7 for i in range(60)], pa.float32()),
        "method": pa.array(["x", "", "y"] * 20).dictionary_encode(),
        "is_distillation": [i % 2 == 0 for i in range(60)],
        "release_date": [("2020-02-29", "", "1999-12-31", "2020-03-01")[i % 4] for i in range(60)],
    }
)
CODED = TABLE.set_column(  # as indexes keep words: codes of a dictionary, one a chunk
    TABLE.column_names.index("method"),
    "method",
    pa.chunked_array([part.dictionary_encode() for part in
                      (TABLE["method"].chunk(0)[:25], TABLE["method"].chunk(0)[25:])]),
)  # fmt: skip
OPS = ["==", "!=", "<", "<=", ">", ">="]


def comparisons(columns: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = {"column": st.sampled_from(columns), "op": st.sampled_from(OPS), "value": values}
    return st.fixed_dictionaries(parts)


def members(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=12).map(lambda v: {"column": column, "op": "in", "value": v})


DAYS = ["2020-02-29", "2020-01-01", "1999-12-31", "2021-01-01"]
COMPARE = st.one_of(
    comparisons(["num_res", "resolution"], st.integers(-3, 60) | st.sampled_from([0.7, 1.4, 2.1])),
    comparisons(["method", "chain_id"], st.sampled_from(["", "x", "xx", "a", "9_A", "z"])),
    comparisons(["release_date"], st.sampled_from(DAYS)),
    comparisons(["is_distillation"], st.booleans()).filter(lambda node: node["op"] in OPS[:2]),
    members("method", st.sampled_from("xyz")),
    members("num_res", st.integers(0, 60)),
    st.sampled_from(["resolution", "method", "release_date", "num_res", "chain_id"]).map(
        lambda column: {"column": column, "op": "known"}
    ),
)
FILTERS = st.recursive(
    COMPARE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda nodes: {"all": nodes}),
        st.lists(inner, max_size=3).map(lambda nodes: {"any": nodes}),
        inner.map(lambda node: {"not": node}),
    ),
    max_leaves=6,
)


def oracle(node: dict[str, Any], row: dict[str, Any]) -> bool:
    """The filter in plain Python, one row at a time."""
    if "all" in node:
        return all(oracle(child, row) for child in node["all"])
    if "any" in node:
        return any(oracle(child, row) for child in node["any"])
    if "not" in node:
        return not oracle(node["not"], row)
    value = row[node["column"]]
    unknown = {"resolution": 0.0, "method": "", "release_date": "", "chain_id": ""}
    known = value != unknown.get(node["column"])
    if node["op"] in ("known", "in"):
        return known and (node["op"] == "known" or value in node["value"])
    wanted = node["value"]
    if node["column"] == "resolution":
        wanted = pa.scalar(float(wanted), pa.float32()).as_py()
    if not isinstance(wanted, str):
        value, wanted = float(value), float(wanted)
    compare = dict(zip(OPS, ("eq", "ne", "lt", "le", "gt", "ge"), strict=True))[node["op"]]
    return known and bool(getattr(operator, compare)(value, wanted))


@settings(deadline=None, max_examples=50)
@given(FILTERS, st.integers(1, 30))
def test_any_filter_agrees_with_plain_python(node: dict[str, Any], limit: int) -> None:
    wanted = [oracle(node, row) for row in TABLE.to_pylist()]
    assert filters.match(TABLE, node).to_pylist() == wanted
    assert filters.match(CODED, node).to_pylist() == wanted
    found, at = [], 0
    while at is not None:  # pages join to the whole
        plain = of_index.page(CODED, node, ["chain_id"], at, limit)
        page, at, total = of_index.page(TABLE, node, ["chain_id"], at, limit, counted=True)
        assert (page, at, total) == (*plain[:2], sum(wanted))
        found += [row["chain_id"] for row in page]
    ids = TABLE["chain_id"].to_pylist()
    assert found == [name for name, there in zip(ids, wanted, strict=True) if there]


def test_no_text_passes_for_a_cursor() -> None:
    signer = CursorSigner(b"k" * 32)
    good = signer.write(7, "0" * 64, "query")
    assert signer.read(good, "query") == (7, "0" * 64)
    changed = [f"{good[:n]}{'-A'[c != 'A']}{good[n + 1 :]}" for n, c in enumerate(good[:-1])]
    odd = ["", ".", "..", "a.b", "%00", "\0", "é", "\ud800", "\n", "=" * 9, "." * 99, "x" * 9999]
    for text in (*changed, *odd, good.replace(".", ""), f"{good}x", f".{good}", good.upper()):
        with pytest.raises(Problem):
            signer.read(text, "query")
    with pytest.raises(Problem, match="another filter"):
        signer.read(good, "another")

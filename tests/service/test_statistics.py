"""Statistics agree with what the index says."""

from __future__ import annotations

import numpy as np
import pytest

from evofeed.store import Dataset


def test_statistics_are_exact(served) -> None:
    index = Dataset.open(served.folder).index
    answer = served.get(f"/snapshots/{served.second}/stats").json()
    assert answer["num_chains"] == index.num_rows
    length = np.asarray(index["num_res"])
    column = answer["columns"]["num_res"]
    assert (column["min"], column["max"]) == (length.min(), length.max())
    assert column["mean"] == pytest.approx(length.mean(), rel=1e-5)
    assert column["quantiles"]["0.5"] == np.sort(length)[(len(length) - 1) // 2]
    assert sum(column["counts"]) == len(length)
    edges = column["edges"]
    assert edges == sorted(set(edges)) and len(edges) == len(column["counts"]) + 1
    for low, high, count in zip(edges, edges[1:], column["counts"], strict=False):
        assert ((length >= low) & (length < high)).sum() == count or high == edges[-1]


def test_unknown_values_are_counted_apart(served) -> None:
    columns = served.get(f"/snapshots/{served.second}/stats").json()["columns"]
    rows = Dataset.open(served.folder).index.to_pylist()
    assert columns["resolution"]["unknown"] == sum(r["resolution"] == 0 for r in rows)
    assert columns["cluster_size"] == {"kind": "integer", "known": 0, "unknown": 45}
    years = columns["release_date"]["years"]
    assert years == {str(y): 15 * (y in (2012, 2019)) for y in range(2012, 2020)}
    assert columns["method"]["values"]["SOLUTION NMR"] == sum(
        r["method"] == "SOLUTION NMR" for r in rows
    )
    assert columns["is_distillation"]["true"] == sum(r["is_distillation"] for r in rows)

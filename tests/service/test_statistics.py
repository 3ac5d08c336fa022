"""Statistics, differences and plans agree with what the index says."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from evofeed.store import Dataset
from evofeed.store.plan import plan_bytes, shard_plan


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


def test_a_difference_names_every_chain_that_differs(served) -> None:
    new = [f"{n:04d}_A" for n in range(40, 45)]
    forward = served.get("/diff", params={"before": served.first}).json()
    assert (forward["added"], forward["removed"], forward["changed"]) == (5, 0, 0)
    assert [e["chain_id"] for e in forward["entries"]] == new
    back = served.get("/diff", params={"before": "main", "after": served.first}).json()
    assert {e["change"] for e in back["entries"]} == {"removed"} and back["removed"] == 5
    same = served.get("/diff", params={"before": "main"}).json()
    assert same["entries"] == [] and same["next"] is None


def test_a_difference_comes_in_pages(served) -> None:
    seen, cursor = [], None
    while True:
        params = {"before": served.first, "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = served.get("/diff", params=params).json()
        seen += [entry["chain_id"] for entry in page["entries"]]
        if not (cursor := page["next"]):
            break
    assert seen == [f"{n:04d}_A" for n in range(40, 45)]
    wrong = served.get("/diff", params={"before": served.second, "cursor": "x" * 20})
    assert wrong.status_code == 422


def test_a_plan_has_the_bytes_computed_offline(served) -> None:
    dataset = Dataset.open(served.folder)
    offline = plan_bytes(shard_plan(dataset.index, dataset.digest, 3, seed=5, epoch=2))
    answer = served.get(f"/snapshots/{served.second}/plan?world_size=3&seed=5&epoch=2")
    assert answer.content == offline
    assert answer.headers["etag"] == f'"{hashlib.sha256(offline).hexdigest()}"'
    one = served.get(f"/snapshots/{served.second}/plan?world_size=3&seed=5&epoch=2&rank=1").json()
    assert one["ranks"] == [answer.json()["ranks"][1]]
    for span in one["ranks"][0]["spans"]:
        asked = {"Range": f"bytes={span['offset']}-{span['offset'] + span['nbytes'] - 1}"}
        assert len(served.get(f"/shards/{span['shard']}", headers=asked).content) == span["nbytes"]


@pytest.mark.parametrize(
    "query",
    ["", "world_size=0", "world_size=65537", "world_size=2&rank=2", "world_size=2&rank=-1",
     "world_size=2&seed=-1", "world_size=2&x=1", f"world_size=2&epoch={2**63}"],
)  # fmt: skip
def test_a_plan_for_no_world_is_422(served, query) -> None:
    assert served.get(f"/snapshots/{served.second}/plan?{query}").status_code == 422

"""Refs move by compare-and-swap and remember where they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from tests.service.conftest import Start, publish

from evofeed.store import Dataset


@pytest.fixture
def moving(start: Start, folder, tmp_path: Path) -> tuple[httpx.Client, Path, str, str]:
    """A service on a dataset of this test's own."""
    shutil.copytree(folder[0], tmp_path / "copy")
    client = start(datasets={"demo": str(tmp_path / "copy")})
    return client, tmp_path / "copy", folder[1], folder[2]


URL = "/v1/datasets/demo/refs/main"


def test_a_ref_moves_only_from_where_the_caller_thinks_it_is(moving) -> None:
    client, path, first, second = moving
    answer = client.get(URL)
    assert answer.json()["digest"] == second
    assert set(answer.json()) == {"name", "digest", "updated_at"}
    assert answer.headers["etag"] == f'"{second}"'
    assert answer.headers["cache-control"] == "no-cache"
    assert client.get(URL, headers={"If-None-Match": f'"{second}"'}).status_code == 304
    assert client.put(URL, json={"digest": first}).status_code == 428
    none = client.put(URL, json={"digest": "0" * 64}, headers={"If-Match": f'"{second}"'})
    assert none.status_code == 404 and Dataset.open(path).digest == second
    for body in ({}, {"digest": "x"}, {"digest": "0" * 64, "more": 1}, {"digest": None}):
        assert client.put(URL, json=body, headers={"If-Match": '"x"'}).status_code == 422, body
    stale = client.put(URL, json={"digest": first}, headers={"If-Match": f'"{first[::-1]}"'})
    assert (stale.status_code, stale.headers["etag"]) == (412, f'"{second}"')
    moved = client.put(URL, json={"digest": first}, headers={"If-Match": f'"{second}"'})
    assert moved.status_code == 200 and moved.headers["etag"] == f'"{first}"'
    assert Dataset.open(path).digest == first
    history = client.get(f"{URL}/history").json()["moves"]
    last = history[0]
    assert (last["previous"], last["digest"], last["principal"]) == (second, first, "local")


def test_a_ref_does_not_move_to_a_snapshot_that_shares_sequences_with_a_test_set(
    start: Start, folder, tmp_path: Path
) -> None:
    shutil.copytree(folder[0], tmp_path / "train")
    valid = publish(tmp_path / "valid", range(100, 103))
    folders = {name: str(tmp_path / name) for name in ("train", "valid")}
    client = start(datasets=folders, input_roots=(str(tmp_path),))
    clusters = tmp_path / "clusters.txt"
    url = "/v1/datasets/train/refs/main"

    def move(*lines: str, **changes: str) -> httpx.Response:
        clusters.write_text("\n".join(lines))
        apart = {"dataset": "valid", "clusters": str(clusters)} | changes
        now = client.get(url).headers["ETag"]
        policy = client.put(f"{url}/policy", json={"apart_from": [apart]})
        if policy.status_code != 200:
            return policy
        return client.put(url, json={"digest": folder[1]}, headers={"If-Match": now})

    all_apart = [f"{n:04d}_A" for n in [*range(45), 100, 101, 102]]
    one_shared = ["0007_A 0101_A", *sorted(set(all_apart) - {"0007_A", "0101_A"})]
    refused = move(*one_shared)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_apart")
    assert "0007_A (0101_A)" in refused.json()["detail"]
    assert "in no cluster" in move(*all_apart[1:]).json()["detail"]
    assert move(*all_apart, clusters=str(tmp_path / "none.txt")).status_code == 422
    assert move(*all_apart, clusters="/etc/passwd").status_code == 403
    assert move(*all_apart, dataset="nowhere").status_code == 404
    assert Dataset.open(tmp_path / "train").digest == folder[2]
    assert move(*all_apart).status_code == 200
    assert Dataset.open(tmp_path / "train").digest == folder[1]
    assert Dataset.open(tmp_path / "valid").digest == valid


def test_a_new_ref_is_made_once(moving) -> None:
    client, _, first, second = moving
    url = "/v1/datasets/demo/refs/stable"
    assert client.get(url).status_code == 404
    for digest, status in ((first, 200), (first, 412), (second, 412)):
        made = client.put(url, json={"digest": digest}, headers={"If-None-Match": "*"})
        assert made.status_code == status
    names = [ref["name"] for ref in client.get("/v1/datasets/demo/refs").json()["refs"]]
    assert names == ["main", "stable"]

"""Refs move by compare-and-swap; their history is a chain without gaps that says who moved them."""

from __future__ import annotations

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, id_of, publish

from evofeed.store import Dataset

URL = "/v1/datasets/demo/refs/main"
ROUNDS = 15
Moving = tuple[httpx.Client, str, Path, str, str]


@pytest.fixture
def moving(start_any: Start, folder, tmp_path: Path) -> Moving:
    """A publisher's client and id, of a service on a dataset of this test's own."""
    shutil.copytree(folder[0], tmp_path / "copy")
    start_any(auth="on", datasets={"demo": str(tmp_path / "copy")})
    text = start_any.token("read", "publish")
    return start_any.client(text), id_of(text), tmp_path / "copy", folder[1], folder[2]


def move(client: httpx.Client, digest: str, *now: str, url: str = URL, **more: str) -> int:
    """Status of a move of the ref from one of these digests."""
    headers = {"If-Match": ", ".join(f'"{one}"' for one in now)}
    return client.put(url, json={"digest": digest, **more}, headers=headers).status_code


def moves_of(client: httpx.Client, query: str = "") -> list[dict[str, Any]]:
    """The history: newest first, each begins where the one before it ended."""
    moves: list[dict[str, Any]] = client.get(f"{URL}/history{query}").json()["moves"]
    for later, earlier in itertools.pairwise(moves):
        assert later["previous"] == earlier["digest"] != later["digest"]
    assert moves[-1]["previous"] is None
    return moves


def test_a_ref_moves_only_from_where_the_caller_thinks_it_is(moving: Moving) -> None:
    client, token_id, path, first, second = moving
    answer = client.get(URL)
    assert answer.json()["digest"] == second
    assert set(answer.json()) == {"name", "digest", "updated_at"}
    assert answer.headers["etag"] == f'"{second}"'
    assert answer.headers["cache-control"] == "no-cache"
    assert client.get(URL, headers={"If-None-Match": f'"{second}"'}).status_code == 304
    for body in ({}, {"digest": "x"}, {"digest": "0" * 64, "more": 1}, {"digest": None}):
        assert client.put(URL, json=body, headers={"If-Match": '"x"'}).status_code == 422, body
    for digest, headers, status in (
        (first, {}, 428),
        ("0" * 64, {"If-Match": f'"{second}"'}, 404),
        (second, {"If-None-Match": "*"}, 412),  # it exists
        (first, {"If-Match": f'W/"{second}"'}, 412),  # weak tags never match
        (first, {"If-Match": f'"{first[::-1]}"'}, 412),
    ):
        refused = client.put(URL, json={"digest": digest}, headers=headers)
        assert refused.status_code == status and Dataset.open(path).digest == second, headers
    assert refused.headers["etag"] == f'"{second}"'
    assert move(client, first, "0" * 64, second) == 200
    assert client.get(URL).headers["etag"] == f'"{first}"' and Dataset.open(path).digest == first
    last = moves_of(client)[0]
    assert (last["previous"], last["digest"], last["principal"]) == (second, first, token_id)
    assert client.put(URL, json={"digest": second}, headers={"If-Match": "*"}).status_code == 200
    new = "/v1/datasets/demo/refs/stable"
    assert client.get(new).status_code == 404
    for digest, status in ((first, 200), (first, 412), (second, 412)):
        made = client.put(new, json={"digest": digest}, headers={"If-None-Match": "*"})
        assert made.status_code == status
    names = [ref["name"] for ref in client.get("/v1/datasets/demo/refs").json()["refs"]]
    assert names == ["main", "stable"]


def test_a_ref_does_not_move_to_a_snapshot_that_shares_sequences_with_a_test_set(
    start: Start, folder, tmp_path: Path
) -> None:
    shutil.copytree(folder[0], tmp_path / "train")
    valid = publish(tmp_path / "valid", range(100, 103))
    folders = {name: str(tmp_path / name) for name in ("train", "valid")}
    client = start(datasets=folders, input_roots=(str(tmp_path),))
    clusters = tmp_path / "clusters.txt"
    url = "/v1/datasets/train/refs/main"

    def moved(*lines: str, **changes: str) -> httpx.Response:
        clusters.write_text("\n".join(lines))
        apart = {"dataset": "valid", "clusters": str(clusters)} | changes
        now = client.get(url).headers["ETag"]
        policy = client.put(f"{url}/policy", json={"apart_from": [apart]})
        if policy.status_code != 200:
            return policy
        return client.put(url, json={"digest": folder[1]}, headers={"If-Match": now})

    all_apart = [f"{n:04d}_A" for n in [*range(45), 100, 101, 102]]
    one_shared = ["0007_A 0101_A", *sorted(set(all_apart) - {"0007_A", "0101_A"})]
    refused = moved(*one_shared)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_apart")
    assert "0007_A (0101_A)" in refused.json()["detail"]
    assert "in no cluster" in moved(*all_apart[1:]).json()["detail"]
    assert moved(*all_apart, clusters=str(tmp_path / "none.txt")).status_code == 422
    assert moved(*all_apart, clusters="/etc/passwd").status_code == 403
    assert moved(*all_apart, dataset="nowhere").status_code == 404
    assert Dataset.open(tmp_path / "train").digest == folder[2]
    assert moved(*all_apart).status_code == 200
    assert Dataset.open(tmp_path / "train").digest == folder[1]
    assert Dataset.open(tmp_path / "valid").digest == valid


def test_racing_publishers_and_readers_leave_one_row_for_each_move(
    moving: Moving, start_any: Start
) -> None:
    one, token_id, _, first, second = moving
    text, won, stop = start_any.token("read", "publish", datasets=["demo"]), [], threading.Event()
    two = start_any.client(text)

    def read() -> None:
        with httpx.Client(base_url=start_any.url, headers=two.headers, timeout=300) as mine:
            while not stop.is_set():
                mine.get(URL)
                mine.get(f"{URL}/history?limit=1")

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for _ in range(ROUNDS):
                at = one.get(URL).json()["digest"]
                won.append(first if at == second else second)
                turns = [pool.submit(move, by, won[-1], at, message="a race") for by in (one, two)]
                assert [turn.result() for turn in turns] == [200, 200]
        finally:
            stop.set()
        assert [reader.result() for reader in readers] == [None, None]
    moves = moves_of(one, "?limit=1000")
    assert [move["digest"] for move in reversed(moves)] == [second, *won]
    principals = [move["principal"] for move in moves]
    assert principals[-1] == "store" and set(principals[:-1]) <= {token_id, id_of(text)}
    assert {move["message"] for move in moves[:-1]} == {"a race"}


def test_a_mover_that_dies_after_the_swap_is_named_once_it_asks_again(
    moving: Moving, monkeypatch
) -> None:
    client, token_id, path, first, second = moving

    def die(*_: object) -> None:
        raise SystemError("killed between the swap and the history")

    def last() -> tuple[str, ...]:
        move = moves_of(client)[0]
        return move["previous"], move["digest"], move["principal"], move["message"]

    with monkeypatch.context() as patch:
        patch.setattr("evofeed.service.refs.Refs._enter", die)
        assert move(client, first, second, message="the last word") == 500
        assert Dataset.open(path).digest == first
        assert last() == (second, first, "store", "")
    assert move(client, first, second, message="the last word") == 200
    assert last() == (second, first, token_id, "the last word")


def test_moves_past_the_service_are_in_the_chain_with_their_own_time(moving: Moving) -> None:
    client, _, path, _, second = moving
    client.get(URL)
    third = publish(path, range(50), expect=second)
    fourth = publish(path, range(52), expect=third)
    assert move(client, second, fourth) == 200
    moves = moves_of(client)
    assert [move["digest"] for move in moves] == [second, fourth, second]
    since = Dataset.open(path).storage.read("refs/main").decode()
    assert moves[0]["moved_at"][:19] in since
    page = client.get(f"{URL}/history?limit=1").json()
    rest = client.get(f"{URL}/history", params={"before": page["next"]}).json()
    assert page["moves"] + rest["moves"] == moves and rest["next"] is None

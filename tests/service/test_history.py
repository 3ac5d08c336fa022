"""A ref's history is a chain without gaps that says who moved it, whoever looks meanwhile."""

from __future__ import annotations

import itertools
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish

from evofeed.service.access.auth import create_token
from evofeed.store import Dataset

URL = "/v1/datasets/demo/refs/main"
ROUNDS = 15


@pytest.fixture
def moving(start_any: Start, folder, tmp_path: Path) -> tuple[Start, httpx.Client, Path, str, str]:
    """A service with tokens on a dataset of this test's own, and a client of each publisher."""
    shutil.copytree(folder[0], tmp_path / "copy")
    client = start_any(auth="on", datasets={"demo": str(tmp_path / "copy")})
    return start_any, client, tmp_path / "copy", folder[1], folder[2]


def chain_of(moves: list[dict[str, Any]]) -> None:
    """Newest first, each begins where the one before it ended."""
    for later, earlier in itertools.pairwise(moves):
        assert later["previous"] == earlier["digest"] != later["digest"]
    assert moves[-1]["previous"] is None


def test_racing_publishers_and_readers_leave_one_row_for_each_move(moving) -> None:
    start, client, _, first, second = moving
    database, base = start.database(), str(client.base_url)
    made = [
        create_token(database, label=f"p{n}", scopes=["read", "publish"], datasets=["demo"])
        for n in range(2)
    ]
    won: list[str] = []
    stop = threading.Event()

    def read() -> None:
        with open_client(base, made[0][1]) as mine:
            while not stop.is_set():
                mine.get(URL)
                mine.get(f"{URL}/history?limit=1")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    with open_client(base, made[0][1]) as one, open_client(base, made[1][1]) as two:
        for _ in range(ROUNDS):
            at = one.get(URL).json()["digest"]
            target = {"digest": first if at == second else second, "message": "a race"}

            def move(mine: httpx.Client, at=at, target=target) -> int:
                return mine.put(URL, json=target, headers={"If-Match": f'"{at}"'}).status_code

            with ThreadPoolExecutor(2) as pool:
                assert list(pool.map(move, (one, two))) == [200, 200]
            won.append(target["digest"])
        stop.set()
        for reader in readers:
            reader.join()
        moves = one.get(f"{URL}/history?limit=1000").json()["moves"]
    chain_of(moves)
    assert [move["digest"] for move in reversed(moves)] == [second, *won]
    principals = [move["principal"] for move in moves]
    assert principals[-1] == "store" and set(principals[:-1]) <= {made[0][0], made[1][0]}
    assert {move["message"] for move in moves[:-1]} == {"a race"}


def test_a_mover_that_dies_after_the_swap_is_still_named(moving, monkeypatch) -> None:
    start, client, path, first, second = moving
    token_id, text = create_token(start.database(), label="p", scopes=["read", "publish"])

    def die(*_: object) -> None:
        raise SystemError("killed between the swap and the history")

    with open_client(str(client.base_url), text) as mine, monkeypatch.context() as patch:
        patch.setattr("evofeed.service.refs._enter", die)
        body = {"digest": first, "message": "the last word"}
        assert mine.put(URL, json=body, headers={"If-Match": f'"{second}"'}).status_code == 500
        assert Dataset.open(path).digest == first
        (last, *_rest) = mine.get(f"{URL}/history").json()["moves"]
    assert (last["principal"], last["message"]) == (token_id, "the last word")
    assert (last["previous"], last["digest"]) == (second, first)


def test_moves_past_the_service_are_in_the_chain_with_their_own_time(moving) -> None:
    start, client, path, _, second = moving
    _, text = create_token(start.database(), label="p", scopes=["read", "publish"])
    with open_client(str(client.base_url), text) as mine:
        mine.get(URL)
        third = publish(path, range(50), expect=second)
        fourth = publish(path, range(52), expect=third)
        moved = mine.put(URL, json={"digest": second}, headers={"If-Match": f'"{fourth}"'})
        assert moved.status_code == 200
        moves = mine.get(f"{URL}/history").json()["moves"]
        chain_of(moves)
        assert [move["digest"] for move in moves] == [second, fourth, second]
        since = Dataset.open(path).storage.read("refs/main").decode()
        assert moves[0]["moved_at"][:19] in since
        page = mine.get(f"{URL}/history?limit=1").json()
        rest = mine.get(f"{URL}/history", params={"before": page["next"]}).json()
        assert page["moves"] + rest["moves"] == moves and rest["next"] is None

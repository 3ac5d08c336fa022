"""What is taken for granted of the database and of refs, for how long, and what ends it at once."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.service.conftest import Start, open_client, publish, until_noticed

from evofeed.service.access.auth import SCOPES, create_token, revoke_token
from evofeed.service.database.changes import Changes
from evofeed.service.snapshots.known_places import KnownPlaces
from evofeed.service.timings import USUAL, Timings
from evofeed.service.work import Work
from evofeed.store.inner import LocalStorage, delete_ref, is_on_disk, move_ref, resident_ref

TRUST = USUAL.unwritten


def test_a_state_is_trusted_for_a_while_and_not_after_a_write_of_ours() -> None:
    now, states = [0.0], itertools.count()
    changes = Changes(lambda: next(states), TRUST, lambda: now[0])
    assert changes.known() is None and changes.state() == 0 and changes.known() == 0
    now[0] = TRUST * 0.4
    assert (changes.state(), changes.known()) == (0, 0), "new enough for everybody"
    now[0] = TRUST * 0.6
    assert changes.known() is None, "one looks again"
    assert changes.known() == 0, "the others go on"
    assert changes.state() == 1
    now[0] += TRUST
    assert [changes.known() for _ in range(3)] == [None] * 3, "too old for anybody"
    assert changes.state() == 2
    changes.wrote()
    assert changes.known() is None and changes.state() == 3


def test_a_write_while_somebody_looks_is_not_covered_by_what_he_saw() -> None:
    looked, go_on = threading.Event(), threading.Event()
    states = itertools.count()

    def look() -> int:
        state = next(states)
        looked.set()
        go_on.wait(60)
        return state

    changes = Changes(look, 60.0)
    looker = threading.Thread(target=changes.state)
    looker.start()
    looked.wait(60)
    changes.wrote()
    go_on.set()
    looker.join()
    assert changes.known() is None and changes.state() == 1


def test_a_database_that_does_not_answer_is_asked_once_a_second() -> None:
    now, asked = [0.0], Counter[str]()

    def look() -> int:
        asked["looks"] += 1
        raise OSError("away")

    changes = Changes(look, TRUST, lambda: now[0])
    with pytest.raises(OSError, match="away"):
        changes.state()
    assert changes.state() is None and changes.known() is None and asked["looks"] == 1
    now[0] = 2.0
    with pytest.raises(OSError, match="away"):
        changes.state()


def test_a_place_read_before_it_was_changed_is_not_kept_after_it() -> None:
    places: KnownPlaces

    def ask(_: str) -> str:
        places.forget("demo")  # another thread of this process moves it now
        return "/old"

    places = KnownPlaces(ask, 0.0, 60.0)
    assert places.of("demo") == "/old" and places.known("demo") == ""


@contextmanager
def _asked_all_the_time(url: str, token: str) -> Iterator[None]:
    """Somebody reads with this token without a pause: whatever may be trusted is."""
    stop = threading.Event()

    def ask() -> None:
        with open_client(url, token) as client:
            while not stop.is_set():
                client.get("/v1/datasets/demo/refs/main")

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_who_revokes_moves_or_registers_is_noticed_at_once(
    start_any: Start, folder, tmp_path: Path
) -> None:
    client = start_any(auth="on", datasets={"demo": str(folder[0])}, dataset_roots=(str(tmp_path),))
    database, url = start_any.database(), str(client.base_url)
    for name in ("one", "other"):
        shutil.copytree(folder[0], tmp_path / name)
    second = publish(tmp_path / "other", range(50), expect=folder[2])
    admin = create_token(database, label="a", scopes=list(SCOPES))[1]
    ref = "/v1/datasets/set/refs/main"
    with open_client(url, admin) as own, _asked_all_the_time(url, admin):
        for _ in range(10):
            made = own.post("/v1/tokens", json={"label": "x", "scopes": ["read"]}).json()
            with open_client(url, made["token"]) as reader:
                for _ in range(3):
                    assert reader.get("/v1/datasets/demo/refs/main").status_code == 200
                assert own.delete(f"/v1/tokens/{made['id']}").status_code == 204
                assert reader.get("/v1/datasets/demo/refs/main").status_code == 401
        for name, digest in (("one", folder[2]), ("other", second), ("one", folder[2])):
            body = {"name": "set", "uri": str(tmp_path / name)}
            assert own.post("/v1/datasets", json=body).status_code == 201
            assert [own.get(ref).json()["digest"] for _ in range(3)] == [digest] * 3
            assert own.delete("/v1/datasets/set").status_code == 204
            assert own.get(ref).status_code == 404
        moved = own.put(
            "/v1/datasets/demo/refs/new", json={"digest": folder[1]}, headers={"If-None-Match": "*"}
        )
        for digest, past in ((folder[2], folder[1]), (folder[1], folder[2])):
            assert moved.status_code == 200
            moved = own.put(
                "/v1/datasets/demo/refs/new",
                json={"digest": digest},
                headers={"If-Match": f'"{past}"'},
            )
            assert own.get("/v1/datasets/demo/refs/new").json()["digest"] == digest
        headers = {"If-Match": f'"{folder[1]}"'}
        assert own.delete("/v1/datasets/demo/refs/new", headers=headers).status_code == 204
        assert own.get("/v1/datasets/demo/refs/new").status_code == 404


def test_another_process_is_noticed_within_the_time_said(start_any: Start, folder) -> None:
    client = start_any(auth="on", datasets={"demo": str(folder[0])})
    database, url = start_any.database(), str(client.base_url)
    busy = create_token(database, label="b", scopes=["read"])[1]
    with _asked_all_the_time(url, busy):
        for _ in range(5):
            token_id, text = create_token(database, label="x", scopes=["read"])
            with open_client(url, text) as reader:
                assert reader.get("/v1/datasets/demo/refs/main").status_code == 200
                revoke_token(
                    database, token_id
                )  # by a connection that the service knows nothing of
                until_noticed()
                assert reader.get("/v1/datasets/demo/refs/main").status_code == 401


def test_a_move_past_the_service_is_seen_by_the_next_who_asks(
    start: Start, folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder[0], tmp_path / "set")
    for_long = Timings(unwritten=600.0, place_known=600.0)
    client = start(datasets={"set": str(tmp_path / "set")}, timings=for_long)
    storage, ref = LocalStorage(tmp_path / "set"), "/v1/datasets/set/refs/main"
    threads, run = Counter[str](), Work.run

    async def counted(self: Work, function: Any, **rest: Any) -> Any:
        threads["used"] += 1
        return await run(self, function, **rest)

    monkeypatch.setattr(Work, "run", counted)
    for digest, before in ((folder[1], folder[2]), (folder[2], folder[1])) * 10:
        for _ in range(4):
            assert client.get(ref).json()["digest"] == before
        move_ref(storage, "main", digest, before)
        assert client.get(ref).json()["digest"] == digest
    if is_on_disk(tmp_path):
        assert threads["used"] < 80, "of 100"
    delete_ref(storage, "main", folder[2])
    assert client.get(ref).status_code == 404
    history = client.get(f"{ref}/history?limit=1000").json()["moves"]
    assert [move["digest"] for move in history[:4]] == [folder[2], folder[1]] * 2


def test_only_short_files_on_a_disk_are_read_at_once(folder, tmp_path: Path) -> None:
    assert not is_on_disk(Path("/proc")) and not is_on_disk(tmp_path / "none")
    if not is_on_disk(tmp_path):
        pytest.skip("the folder of the tests is on no file system that is known here")
    storage = LocalStorage(tmp_path)
    assert resident_ref(storage, "main") is None
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs" / "folder").mkdir()
    assert resident_ref(storage, "folder") is None
    move_ref(storage, "main", folder[1], None)
    found = resident_ref(storage, "main")
    assert found is not None and found.digest == folder[1]
    path = tmp_path / "refs" / "main"
    path.write_text(path.read_text() + " " * 5000)
    assert resident_ref(storage, "main") is None
    move_ref(storage, "gone", folder[1], None)
    delete_ref(storage, "gone", folder[1])
    assert resident_ref(storage, "gone") is None


def test_a_known_token_costs_no_query_for_as_long_as_nobody_writes(
    start_any: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evofeed.service.access import authority

    client = start_any(auth="on", datasets={"demo": str(folder[0])}, max_jobs=0)
    text = create_token(start_any.database(), label="x", scopes=["read"])[1]
    asked, ask = Counter[str](), authority.authenticate_text

    def counted(*given: Any) -> Any:
        asked["tokens"] += 1
        return ask(*given)

    monkeypatch.setattr(authority, "authenticate_text", counted)
    with open_client(str(client.base_url), text) as reader:
        for _ in range(5):
            for _ in range(20):
                assert reader.get("/v1/datasets/demo/refs/main").status_code == 200
            time.sleep(TRUST)
        assert isinstance(client, httpx.Client) and asked["tokens"] <= 20, "of 100"

"""Refs move by compare-and-swap, as their policy allows, whether a request moves them or a job.

Their history is a chain without gaps that says who moved them.
"""

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

from evofeed.service.access.auth import revoke_token
from evofeed.service.refs import Refs
from evofeed.store import Dataset
from evofeed.synth import write_synthetic

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


REF = "/v1/datasets/demo/refs/main"


class World:
    """A service with a published dataset and raw input, whose jobs end when they are asked to."""

    def __init__(self, start: Start, tmp_path: Path) -> None:
        self.copy, self._raw, self.start = tmp_path / "copy", str(tmp_path / "raw"), start
        write_synthetic(tmp_path / "raw", 2, seed=0)
        start(auth="on", datasets={"demo": str(self.copy)}, input_roots=(str(tmp_path),))
        self.as_ = start.as_

    @property
    def digest(self) -> str:
        """What `main` names in the folder itself."""
        return Dataset.open(self.copy).digest

    def submit(self, client: httpx.Client, **changes: Any) -> httpx.Response:
        body = {"dataset": "demo", "input_uri": self._raw, "executor": "local", "replace": True}
        return client.post("/v1/jobs", json=body | {"workers": 1} | changes)

    def end(self, client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
        """The job of an answer, once it has ended."""
        assert answer.status_code == 202, answer.text
        self.start.work_off()
        ended: dict[str, Any] = client.get(f"/v1/jobs/{answer.json()['id']}").json()
        return ended

    def done(self, client: httpx.Client, **changes: Any) -> dict[str, Any]:
        return self.end(client, self.submit(client, **changes))


@pytest.fixture
def world(start: Start, folder, tmp_path: Path, jobs_wait: None) -> World:
    shutil.copytree(folder[0], tmp_path / "copy")
    return World(start, tmp_path)


def put(client: httpx.Client, digest: str) -> httpx.Response:
    now = client.get(REF).headers["ETag"]
    return client.put(REF, json={"digest": digest}, headers={"If-Match": now})


def test_a_token_without_publish_moves_no_ref_by_a_job(world: World) -> None:
    before, jobs = world.digest, world.as_("jobs", "read")
    refused = world.submit(jobs)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    done = world.done(jobs, ref=None)
    assert done["state"] == "succeeded", done
    manifest = jobs.get(f"/v1/datasets/demo/snapshots/{done['result']['snapshot']}").json()
    assert manifest["num_chains"] == 2 and world.digest == before


def test_a_policy_holds_for_requests_and_for_jobs(world: World, folder) -> None:
    admin, publisher = world.as_("admin", "read"), world.as_("publish", "read", "jobs")
    late = {"column": "num_res", "op": ">", "value": 0}
    assert admin.put(f"{REF}/policy", json={"forbid": [late]}).status_code == 200
    assert admin.get(f"{REF}/policy").json()["forbid"] == [late]
    refused = put(publisher, folder[1]).json()
    assert refused["code"] == "forbidden_chains" and "0002_A" in refused["detail"]
    done = world.done(publisher)
    assert done["state"] == "failed" and "forbid[0]" in done["error"]
    assert len(done["result"]["snapshot"]) == 64, "what was made can still be looked at"
    admin.put(f"{REF}/policy", json={"protected": True})
    again = publisher.post(f"/v1/jobs/{done['id']}/retry")
    for held in (put(publisher, folder[1]), world.submit(publisher), again):
        assert held.json()["code"] == "ref_protected"
    admin.put(f"{REF}/policy", json={"reviewer": "admin"})
    for held in (put(publisher, folder[1]), world.submit(publisher)):
        assert held.status_code == 403
    assert world.digest == folder[2]
    reviewer = world.as_("admin", "publish", "read")
    assert put(reviewer, done["result"]["snapshot"]).status_code == 200
    bad = {"forbid": [{"column": "x", "op": "known"}]}
    assert admin.put(f"{REF}/policy", json=bad).status_code == 422


def test_a_job_says_who_moved_the_ref_and_why_and_not_after_its_token_has_ended(
    world: World, start: Start
) -> None:
    text = start.token("publish", "jobs", "read", datasets=["demo"])
    reader, publisher, token_id = world.as_("admin", "read"), start.client(text), id_of(text)
    done = world.done(publisher, message="more chains")
    assert done["state"] == "succeeded", done
    last = reader.get(f"{REF}/history").json()["moves"][0]
    assert last["digest"] == done["result"]["snapshot"]
    why = last["principal"], last["job"], last["message"]
    assert why == (token_id, done["id"], "more chains")
    held = world.submit(publisher, crop={"max_msa_rows": 3})
    revoke_token(start.database, token_id)
    refused = world.end(reader, held)
    assert refused["state"] == "failed" and "revoked" in refused["error"]
    assert reader.get(REF).json()["digest"] == done["result"]["snapshot"]
    lines = reader.get("/v1/audit").json()["lines"]
    actions = {(line["action"], line["principal"]) for line in lines}
    assert {("ref.move", token_id), ("job.end", token_id)} <= actions


def test_a_job_that_came_too_late_says_what_to_do_and_where_its_work_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another service on the same folder, with a database of its own, was faster."""
    moved, client = Refs.move, world.as_("publish", "jobs", "read")

    def late(refs: Refs, dataset: str, ref: str, digest: str, expect: str, *more: Any, **why: Any):
        monkeypatch.setattr(Refs, "move", moved)
        publish(world.copy, range(60), expect=expect)
        return moved(refs, dataset, ref, digest, expect, *more, **why)

    monkeypatch.setattr(Refs, "move", late)
    failed = world.done(client)
    assert failed["state"] == "failed" and "run it again" in failed["error"], failed
    assert "open the dataset" not in failed["error"], "words for who writes Python"
    made = client.get(f"/v1/datasets/demo/snapshots/{failed['result']['snapshot']}")
    assert made.status_code == 200
    again = world.end(client, client.post(f"/v1/jobs/{failed['id']}/retry"))
    assert again["state"] == "succeeded", again
    assert client.get(REF).json()["digest"] == again["result"]["snapshot"]


def test_an_old_input_submitted_again_is_published_at_once(world: World) -> None:
    client = world.as_("publish", "jobs", "read")

    def snapshots() -> dict[str, Any]:
        listed = client.get("/v1/datasets/demo/snapshots").json()["snapshots"]
        return {one["digest"]: one for one in listed}

    first, old = world.done(client), snapshots()
    publish(world.copy, range(60), expect=first["result"]["snapshot"])
    again = world.done(client)
    assert again["state"] == "succeeded", again
    assert client.get(REF).json()["digest"] == again["result"]["snapshot"]
    assert old.items() <= snapshots().items(), "what was there is not written again"

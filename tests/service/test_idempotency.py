"""The same POST twice is done once."""

from __future__ import annotations

import threading

import httpx
from tests.service.conftest import Start


def test_a_repeated_key_gets_the_first_answer(start_any: Start, tmp_path) -> None:
    client = start_any()
    new = {"name": "a", "uri": str(tmp_path)}
    first = client.post("/v1/datasets", json=new, headers={"Idempotency-Key": "k"})
    again = client.post("/v1/datasets", json=new, headers={"Idempotency-Key": "k"})
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    actions = [line["action"] for line in client.get("/v1/audit").json()["lines"]]
    assert actions.count("dataset.register") == 1


def test_a_key_used_for_another_request_is_refused(start_any: Start, tmp_path) -> None:
    client = start_any()
    for name, status in (("a", 201), ("b", 422)):
        new = {"name": name, "uri": str(tmp_path)}
        answer = client.post("/v1/datasets", json=new, headers={"Idempotency-Key": "k"})
        assert answer.status_code == status


def test_a_refused_request_may_be_mended_under_its_key(start_any: Start, tmp_path) -> None:
    client = start_any()
    headers = {"Idempotency-Key": "k"}
    assert client.post("/v1/datasets", json={"name": "a"}, headers=headers).status_code == 422
    good = {"name": "a", "uri": str(tmp_path)}
    assert client.post("/v1/datasets", json=good, headers=headers).status_code == 201


def test_a_malformed_key_is_refused(start_any: Start, tmp_path) -> None:
    client = start_any()
    for key in ("a b", "", "x" * 129, "é"):
        headers = [(b"Idempotency-Key", key.encode())]
        new = {"name": "a", "uri": str(tmp_path)}
        assert client.post("/v1/datasets", json=new, headers=headers).status_code == 422


def test_of_many_at_once_one_is_done(start_any: Start, tmp_path) -> None:
    client = start_any()
    statuses: list[int] = []

    def post() -> None:
        with httpx.Client(base_url=client.base_url, timeout=300) as mine:
            new = {"name": "a", "uri": str(tmp_path)}
            answer = mine.post("/v1/datasets", json=new, headers={"Idempotency-Key": "k"})
            statuses.append(answer.status_code)

    threads = [threading.Thread(target=post) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {201, 409} and 201 in statuses
    actions = [line["action"] for line in client.get("/v1/audit").json()["lines"]]
    assert actions.count("dataset.register") == 1

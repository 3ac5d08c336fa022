"""One bad dataset, one busy reader, or a database that is away stops nobody else."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from tests.featurize.job.stage import wait_until as until
from tests.service.conftest import Start, id_of, until_trusted

from evofeed.service import work
from evofeed.service.access.auth import revoke_token
from evofeed.service.database.database import Database
from evofeed.service.snapshots.catalog import Catalog, StoreView
from evofeed.service.work import Work
from evofeed.store import Dataset


def test_a_store_that_hangs_answers_for_itself_only(
    start: Start, folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, go_on = StoreView.ref, threading.Event()

    def ref(self: StoreView, name: str) -> Any:
        if self.storage.uri.endswith("hangs"):
            go_on.wait(300)
        return read(self, name)

    monkeypatch.setattr(StoreView, "ref", ref)
    shutil.copytree(folder[0], tmp_path / "hangs")
    datasets = {"stuck": str(tmp_path / "hangs"), "demo": str(folder[0])}
    client = start(datasets=datasets, request_seconds=6.0)
    url = f"{start.url}/v1/datasets/stuck/refs/main"
    try:
        with ThreadPoolExecutor(40) as pool:
            asked = [pool.submit(httpx.get, url, timeout=300) for _ in range(40)]
            for _ in range(5):
                assert client.get("/healthz", timeout=5).status_code == 200
                assert client.get("/v1/datasets/demo/refs/main", timeout=5).status_code == 200
            home = client.get("/", timeout=60)
        assert home.status_code == 200 and "no answer within" in home.text and "45" in home.text
        assert [one.result().status_code for one in asked] == [503] * 40
    finally:
        go_on.set()
    assert client.get(url).status_code == 200


def test_what_is_no_file_is_refused_not_waited_for(start: Start, folder, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder[0], copy)
    (copy / "refs" / "main").unlink()
    os.mkfifo(copy / "refs" / "main")
    os.mkfifo(tmp_path / "clusters")
    client = start(datasets={"demo": str(copy), "fine": str(folder[0])})
    url = "/v1/datasets/demo/refs/main"
    assert client.get(url, timeout=20).status_code in (502, 503)
    apart = {"dataset": "fine", "clusters": str(tmp_path / "clusters")}
    other = "/v1/datasets/fine/refs/main"
    headers = {"If-Match": f'"{folder[2]}"'}
    for policy in (apart, apart | {"clusters": "/dev/zero"}):
        made = client.put(f"{other}/policy", json={"apart_from": [policy]})
        assert made.status_code == 200, made.text
        body = {"digest": folder[1]}
        assert client.put(other, json=body, headers=headers, timeout=20).status_code == 422
    with pytest.raises(Exception, match="not a regular file"):
        Dataset.open(copy)


def test_a_row_that_went_bad_is_503_for_itself(start: Start, folder) -> None:
    client = start(datasets={"demo": str(folder[0])})
    with start.database.write() as session:
        for number, uri in enumerate(["s3://bucket/a//b", "ftp://x", f"/{'x' * 300}"]):
            names = "name, folded, uri, place, description, created_at"
            insert = text(f"INSERT INTO datasets ({names}) VALUES (:n, :n, :u, :u, '', 0)")
            session.execute(insert, {"n": f"bad{number}", "u": uri})
    for number in range(3):
        for path in ("refs", "refs/main", "snapshots", f"shards/{'0' * 64}.arrow"):
            answer = client.get(f"/v1/datasets/bad{number}/{path}")
            assert answer.status_code in (404, 502, 503), (number, path, answer.text)
            assert "s3://" not in answer.text and "ftp://" not in answer.text
    home = client.get("/")
    assert home.status_code == 200 and "45" in home.text


def test_one_caller_cannot_pile_up_heavy_work(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(datasets={"demo": str(folder[0])}, heavy_requests=4)
    statistics, go_on = Catalog.statistics, threading.Event()
    running: list[str] = []

    def slow(self: Catalog, name: str, digest: str) -> Any:
        running.append(name)
        go_on.wait(60)
        return statistics(self, name, digest)

    monkeypatch.setattr(Catalog, "statistics", slow)
    snapshot = f"{start.url}/v1/datasets/demo/snapshots/{folder[2]}"
    with ThreadPoolExecutor(20) as pool:
        try:
            asked = [pool.submit(httpx.get, f"{snapshot}/stats", timeout=300) for _ in range(20)]
            until(lambda: sum(one.done() for one in asked) >= 16)
            search = client.post(f"{snapshot}/chains/search", content=b"{")
            assert search.status_code == 429, "said before its body is parsed"
            for light in (snapshot, "/healthz"):
                assert client.get(light, timeout=10).status_code == 200
            assert len(running) <= 2, "the others wait"
        finally:
            go_on.set()
    answers = [one.result() for one in asked]
    assert sorted(one.status_code for one in answers) == [200] * 4 + [429] * 16
    assert {one.headers["Retry-After"] for one in answers if one.status_code == 429} == {"1"}


def test_a_count_stops_after_its_time(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start(datasets={"demo": str(folder[0])})
    run = Work.run

    async def hurried(self: Work, function: Callable[[], Any], **options: Any) -> Any:
        if options.get("heavy"):  # the thread continues when nobody waits any more
            function = partial(_late, function)
        return await run(self, function, **options)

    monkeypatch.setattr(Work, "run", hurried)
    answer = client.get("/v1/datasets/demo/chains?count=true&min_length=1")
    assert (answer.status_code, answer.json()["code"]) == (503, "too_slow")


def _late(function: Callable[[], Any]) -> Any:
    work._until.set(time.monotonic() - 1.0)
    return function()


def away(self: Database) -> Any:
    raise OperationalError("SELECT 1", {}, Exception("the connection was refused"))


def test_while_the_database_is_away_known_tokens_read_bytes_and_the_rest_is_503(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])}, max_jobs=0)
    revoked = start.token("read")
    known, other, gone = start.as_("read"), start.as_("read"), start.client(revoked)
    manifest = f"/v1/datasets/demo/snapshots/{folder[2]}"
    shard = f"/v1/datasets/demo/shards/{known.get(manifest).json()['shards'][0]['name']}"
    assert known.get(shard).status_code == gone.get(manifest).status_code == 200
    revoke_token(start.database, id_of(revoked))
    until_trusted()
    assert gone.get(manifest).status_code == 401
    monkeypatch.setattr(Database, "read", away)
    monkeypatch.setattr(Database, "write", away)
    assert [gone.get(manifest).status_code for _ in range(3)] == [503] * 3, "not 200"
    for path in (manifest, f"{manifest}/index", shard):
        assert known.get(path).status_code == 200
    for path in ("/v1/datasets", "/v1/datasets/demo/refs/main", "/v1/jobs", "/"):
        answer = known.get(path)
        assert answer.status_code == 503 and answer.headers["Retry-After"] == "2"
    assert known.get("/v1/jobs").json()["code"] == "database_away"
    assert known.get("/healthz").status_code == 200
    assert other.get(manifest).status_code == 503
    assert "Traceback" not in caplog.text
    monkeypatch.undo()
    assert client.get("/healthz").status_code == 200

"""The short way answers as the framework does, to whoever may ask and to nobody else."""

from __future__ import annotations

import gzip
import json
import threading
from collections import Counter
from typing import Any

import httpx
import pyarrow as pa
import pytest
from tests.service.conftest import Served, Start, open_client, until_noticed

from evofeed.service import direct
from evofeed.service.access.auth import create_token, revoke_token
from evofeed.service.database.database import Database
from evofeed.service.filters.columns import Columns
from evofeed.service.filters.row_filter import RowFilter
from evofeed.service.snapshots.catalog import Catalog
from evofeed.service.snapshots.kept import Kept
from evofeed.service.timings import Timings
from evofeed.service.work import NeedsThread, Work, run_here


def _questions(served: Served) -> list[tuple[str, dict[str, str]]]:
    """Requests for every hot route: plain ones, odd ones, wrong ones."""
    base, snapshot = "/v1/datasets/demo", f"/v1/datasets/demo/snapshots/{served.second}"
    manifest = served.get(f"/snapshots/{served.second}").json()
    shard = f"{base}/shards/{manifest['shards'][0]['name']}"
    etag = {"If-None-Match": f'"{served.second}"'}
    return [
        *((path, {}) for path in (
            snapshot, f"{base}/snapshots/{'0' * 64}", f"/v1/datasets/none/snapshots/{'0' * 64}",
            f"{base}/snapshots/xyz", shard, f"{base}/shards/{'0' * 64}.arrow", f"{base}/shards/..",
            f"{base}/refs/main", f"{base}/refs/none", f"{base}/refs/a%2Fb", f"{base}/refs/main?x=1",
            f"{snapshot}/chains/0001_A", f"{snapshot}/chains/none", f"{snapshot}/chains/a%22b",
            f"{snapshot}/chains", f"{snapshot}/chains?limit=7&count=true&max_length=100",
            f"{snapshot}/chains?method=X-RAY%20DIFFRACTION&method=SOLUTION%20NMR&columns=chain_id",
            f"{snapshot}/chains?limit=0", f"{snapshot}/chains?limit=1&limit=2",
            f"{snapshot}/chains?odd=1", f"{snapshot}/chains?cursor=abc",
            f"{snapshot}/chains?columns=none", f"{snapshot}/chains?where=%7B",
            f"{snapshot}/chains?where=%FF", f"{snapshot}/chains?limit=",
            f"{snapshot}/plan?world_size=4&rank=1", f"{snapshot}/plan?world_size=4",
            f"{snapshot}/plan?world_size=4&rank=1&preset=prediction",
            f"{snapshot}/plan?world_size=4&rank=4", f"{snapshot}/plan",
        )),
        (snapshot, etag), (f"{base}/refs/main", etag), (snapshot, {"Accept-Encoding": "gzip"}),
        (shard, {"Range": "bytes=3-9"}), (shard, {"Range": "bytes=999999999-"}),
        (f"{snapshot}/chains/none", {"Accept": "text/html"}),
    ]  # fmt: skip


def _said(client: httpx.Client, method: str, path: str, headers: dict[str, str]) -> object:
    answer = client.request(method, path, headers=headers)
    kept = {k: v for k, v in answer.headers.items() if k not in ("date", "x-request-id")}
    return answer.status_code, kept, answer.content


def test_the_short_way_says_what_the_framework_says(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = [(m, *q) for q in _questions(served) for m in ("GET", "HEAD", "GET")]
    short = [_said(served.client, *question) for question in questions]
    monkeypatch.setattr(direct, "_HOT", ())
    for question, said in zip(questions, short, strict=True):
        assert _said(served.client, *question) == said, question


def test_the_short_way_is_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    serve = direct.Direct._serve

    async def noted(self: direct.Direct, hot: direct._Hot, *rest: object) -> None:
        taken.append(hot.endpoint.__name__)
        await serve(self, hot, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(direct.Direct, "_serve", noted)
    for path, headers in _questions(served):
        served.client.get(path, headers=headers)
    assert set(taken) == {hot.endpoint.__name__ for hot in direct._HOT}


def test_the_short_way_admits_whom_the_framework_admits(
    start_any: Start, served: Served, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = start_any(auth="on", datasets={"demo": str(folder[0])})
    database = start_any.database()

    def token(*scopes: str, **options: object) -> tuple[str, str]:
        return create_token(database, label="x", scopes=list(scopes), **options)  # type: ignore[arg-type]

    revoked = token("read")
    tokens = ["", "evf_wrong", token("read")[1], token("jobs")[1], revoked[1],
              token("read", datasets=["other"])[1]]  # fmt: skip
    asked = [path for path, headers in _questions(served) if not headers]
    paths = [
        next(p for p in asked if hot.path.fullmatch(p.partition("?")[0])) for hot in direct._HOT
    ]
    for text in (revoked[1], tokens[2]):  # both are known before one of them is revoked
        with open_client(str(client.base_url), text) as own:
            assert own.get(paths[0]).status_code == 200
    revoke_token(database, revoked[0])
    until_noticed()

    def statuses() -> list[int]:
        found = []
        for text in tokens:
            with open_client(str(client.base_url), text) as own:
                found += [own.get(path).status_code for path in paths]
        return found

    short = statuses()
    monkeypatch.setattr(direct, "_HOT", ())
    assert statuses() == short
    denied = [401, 401, 200, 403, 401, 403]
    assert [short[i * len(paths)] for i in range(len(tokens))] == denied


def test_json_is_compressed_for_whoever_takes_that(served: Served) -> None:
    snapshot = f"{served.base}/snapshots/{served.second}"
    path = f"{snapshot}/stats"
    plain = served.client.get(path, headers={"Accept-Encoding": "identity"})
    packed = served.client.get(path, headers={"Accept-Encoding": "br;q=1, gzip;q=0.5"})
    assert "content-encoding" not in plain.headers and packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content and packed.headers["etag"] != plain.headers["etag"]
    assert int(packed.headers["content-length"]) < len(plain.content) / 2
    assert {a.headers["vary"] for a in (plain, packed)} == {"Accept-Encoding"}
    for tag in (plain.headers["etag"], packed.headers["etag"]):
        assert served.client.get(path, headers={"If-None-Match": tag}).status_code == 304
    refused = served.client.get(path, headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers
    part = served.client.get(path, headers={"Range": "bytes=0-9", "Accept-Encoding": "gzip"})
    assert part.status_code == 206 and part.content == plain.content[:10]
    page = served.client.get(f"{snapshot}/chains", headers={"Accept-Encoding": "gzip"})
    assert page.headers["content-encoding"] == "gzip" and len(json.loads(page.content)["chains"])


def test_what_is_kept_compressed_is_bounded() -> None:
    packed = Kept[str, bytes](100, len)
    made = [packed.get(str(i), lambda: gzip.compress(b"")) for i in range(50)]
    assert len(set(made)) == 1 and sum(map(len, packed._kept.values())) <= 100
    assert packed.get("49", lambda: b"not asked") == made[0]
    packed.get("large", lambda: b"x" * 60)
    assert "large" not in packed._kept


def test_what_was_asked_before_costs_no_thread_and_no_query(
    start: Start, served: Served, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    timings = Timings(place_known=600.0, unwritten=600.0)
    client = start(auth="on", datasets={"demo": str(folder[0])}, timings=timings)
    text = create_token(start.database(), label="x", scopes=["read"])[1]
    work, read = Counter[str](), Counter[str]()
    run, session = Work.run, Database.read

    async def counted(self: Work, function: Any, **rest: Any) -> Any:
        work["threads"] += 1
        return await run(self, function, **rest)

    def reading(self: Database) -> Any:
        read["queries"] += 1
        return session(self)

    base, snapshot = "/v1/datasets/demo", f"/v1/datasets/demo/snapshots/{served.second}"
    with open_client(str(client.base_url), text) as own:
        for path, threads in (
            (snapshot, 0),
            (f"{snapshot}/chains?limit=5&max_length=300", 0),
            (f"{snapshot}/chains/0001_A", 0),
            (f"{snapshot}/plan?world_size=4&rank=1&preset=prediction", 0),
            (f"{base}/refs/main", 0),
        ):
            first = [own.get(path) for _ in range(3)][-1]
            with monkeypatch.context() as watched:
                watched.setattr(Work, "run", counted)
                watched.setattr(Database, "read", reading)
                work.clear()
                assert own.get(path).content == first.content and first.status_code == 200
            assert (work["threads"], read["queries"]) == (threads, 0), path


def test_an_epochs_order_is_made_once_for_all_ranks(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evofeed.loader import plan

    made = []
    order = plan.epoch_order
    monkeypatch.setattr(plan, "epoch_order", lambda *a, **k: made.append(1) or order(*a, **k))
    url = f"{served.base}/snapshots/{served.second}/plan"
    url += "?world_size=40&seed=4242&preset=prediction&rank="
    ranks = [served.client.get(f"{url}{rank}").json()["samples"] for rank in range(40)]
    assert len(made) == 1 and all(len(samples) == 1 for samples in ranks)
    assert len({samples[0]["position"] for samples in ranks}) == 40


def test_short_questions_are_answered_on_the_event_loop(
    start: Start, folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = {"demo": str(folder[0])}  # a service of its own: other tests' columns are ready
    client = start(datasets=datasets, timings=Timings(place_known=600.0))
    snapshot = f"/v1/datasets/demo/snapshots/{folder[2]}"
    shard = client.get(snapshot).json()["shards"][0]["name"]
    asked = Counter[str]()
    run = Work.run

    async def counted(self: Work, function: Any, **rest: Any) -> Any:
        asked["threads"] += 1
        return await run(self, function, **rest)

    def threads(path: str, client: httpx.Client = client) -> int:
        asked.clear()
        assert client.get(path).status_code == 200
        return asked["threads"]

    client.get(f"{snapshot}/chains?limit=3")
    client.get(f"{snapshot}/chains/0000_A")
    client.get(f"/v1/datasets/demo/shards/{shard}")
    client.get(snapshot)
    monkeypatch.setattr(Work, "run", counted)
    first = f"{snapshot}/chains?limit=3&max_length=100"
    assert threads(first) == 1, "a column not yet ready; all are made so behind this"
    for thread in threading.enumerate():
        if thread.name == "evofeed-columns":
            thread.join()
    assert threads(f"{snapshot}/chains?limit=4&max_length=91") == 0
    assert threads(f"{snapshot}/chains/0003_A") == 0
    assert threads(f"/v1/datasets/demo/shards/{shard}") == 0
    assert threads(f"{snapshot}/chains?limit=4&min_length=9") == 0, "the same column"
    assert threads(f"{snapshot}/chains?limit=4&max_resolution=2.5") == 0, "made ready meanwhile"
    assert threads(f"{snapshot}/chains?limit=201&max_length=92") == 1
    assert threads(f"{snapshot}/chains?limit=4&max_length=93&count=true") == 1
    hasty = start(datasets=datasets, timings=Timings(place_known=600.0, on_loop=-1.0))
    rows = hasty.get(f"{snapshot}/chains?limit=1000").json()["chains"]
    hasty.get(f"{snapshot}/chains?limit=3&max_length=100")
    slow = f"{snapshot}/chains?limit=4&max_length=94"
    assert threads(slow, hasty) == 1, "what takes too long goes on in a thread"
    assert hasty.get(slow).json()["chains"] == [row for row in rows if row["num_res"] <= 94][:4]


def test_nothing_waits_on_the_event_loop(start: Start) -> None:
    start()
    database = start.database()
    with pytest.raises(NeedsThread):
        run_here(lambda: database.read().__enter__())
    with pytest.raises(NeedsThread):
        run_here(lambda: database.write().__enter__())
    table = pa.table({"chain_id": ["1abc_A"], "num_res": [7]})
    columns = Columns(table)
    for ask in (
        lambda: columns.find("1abc_A"),
        lambda: columns.json(["num_res"], slice(0, 1)),
        lambda: RowFilter(columns, {"column": "num_res", "op": ">", "value": 3}),
        lambda: RowFilter(columns, {"column": "chain_id", "op": ">", "value": "1"}),
    ):
        with pytest.raises(NeedsThread):
            run_here(ask)
        ask()
    assert run_here(lambda: columns.find("1abc_A")) == 0
    assert run_here(lambda: columns.json(["num_res"], slice(0, 1))) == b'[{"num_res":7}]'
    with pytest.raises(NeedsThread):  # Arrow looks at texts where the file is mapped
        run_here(lambda: RowFilter(columns, {"column": "chain_id", "op": ">", "value": "1"}))


def test_columns_made_ready_are_bounded(
    served: Served, folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    database = Database(f"sqlite:///{tmp_path / 'own.sqlite3'}")
    database.upgrade()
    catalog = Catalog(database)
    catalog.register("demo", str(folder[0]))
    first = catalog.snapshot("demo", folder[1])
    both = first.columns.nbytes + catalog.snapshot("demo", folder[2]).columns.nbytes
    assert catalog.snapshot("demo", folder[1]) is first
    monkeypatch.setattr("evofeed.service.snapshots.catalog._MAX_NBYTES", both - 1)
    catalog.close()
    again = catalog.snapshot("demo", folder[1])
    second = catalog.snapshot("demo", folder[2])
    assert list(catalog._snapshots.values()) == [second]
    assert catalog.snapshot("demo", folder[1]) is not again
    database.close()

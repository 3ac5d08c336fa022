"""HTTP as its documents have it, at the corners."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.conftest import Start, open_client, until

from evofeed.service.access.auth import create_token
from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import parse_range
from evofeed.store import Dataset


def test_whatever_answers_get_answers_head(served) -> None:
    for path in ("/healthz", "/", "/v1/datasets", f"{served.base}/refs/main",
                 f"{served.base}/snapshots/{served.second}/stats"):  # fmt: skip
        whole, head = served.client.get(path), served.client.head(path)
        assert (head.status_code, head.content) == (200, b"")
        same = ("content-type", "etag", "cache-control")
        assert [head.headers.get(n) for n in same] == [whole.headers.get(n) for n in same]


def test_a_refused_method_lists_all_that_are_allowed(served) -> None:
    for path, methods in (
        (f"{served.base}/refs/main", {"GET", "HEAD", "PUT", "DELETE"}),
        ("/v1/datasets", {"GET", "HEAD", "POST"}),
        (served.base, {"GET", "HEAD", "DELETE"}),
    ):
        answer = served.client.request("OPTIONS", path)
        assert answer.status_code == 405 and set(answer.headers["Allow"].split(", ")) == methods


def test_a_digest_in_a_path_means_an_etag(served) -> None:
    base = f"/snapshots/{served.second}"
    for path in ("", "/index", "/stats", "/chains", "/chains/0001_A"):
        answer = served.get(base + path)
        assert "immutable" in answer.headers["cache-control"], path
        known = {"If-None-Match": answer.headers["etag"]}
        assert served.get(base + path, headers=known).status_code == 304


def test_a_method_counts_in_either_case(served) -> None:
    url = f"/snapshots/{served.second}/chains?count=true&method="
    upper, lower = (served.get(url + m).json() for m in ("X-RAY DIFFRACTION", "x-ray diffraction"))
    assert upper["matched"] == lower["matched"] > 0


def test_texts_that_a_database_cannot_keep_are_refused(start_any: Start, tmp_path) -> None:
    client = start_any(datasets={"out": str(tmp_path / "out")})
    headers = {"Content-Type": "application/json"}
    for name, value in (
        ("description", '"a\\u0000b"'),
        ("description", '"a\\ud800"'),
        ("description", '"a\\u0001"'),
    ):
        text = f'{{"name": "x", "uri": "{tmp_path}/x", "{name}": {value}}}'
        answer = client.post("/v1/datasets", content=text, headers=headers)
        assert answer.status_code == 422, answer.text
    for number in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = (
            f'{{"dataset": "out", "input_uri": "/raw", '
            f'"config": {{"confidence_threshold": {number}}}}}'
        )
        assert client.post("/v1/jobs", content=text, headers=headers).status_code == 422
    fine = {"name": "x", "uri": f"{tmp_path}/x", "description": "ä\u2028\ttext\n"}
    assert client.post("/v1/datasets", json=fine).status_code == 201


def test_a_dataset_registered_twice_is_there_once(start: Start, tmp_path) -> None:
    client = start()
    new = {"name": "x", "uri": str(tmp_path / "x"), "description": "one"}
    first, second = (client.post("/v1/datasets", json=new) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.headers["Location"] == second.headers["Location"] == "/v1/datasets/x"
    assert client.post("/v1/datasets", json=new | {"description": "two"}).status_code == 200
    assert client.post("/v1/datasets", json=new | {"description": ""}).status_code == 200
    assert client.get("/v1/datasets/x").json()["description"] == "two"
    gone = client.delete("/v1/datasets/x")
    assert gone.status_code == 204 and "content-type" not in gone.headers


def test_readers_see_no_places(start: Start, folder) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    database = start.database()

    def get(path: str, *scopes: str, **options: Any) -> Any:
        text = create_token(database, label="x", scopes=list(scopes), **options)[1]
        with open_client(str(client.base_url), text) as own:
            return own.get(path)

    assert get("/v1/datasets/demo", "read").json()["uri"] is None
    assert get("/v1/datasets/demo", "read", "jobs").json()["uri"] == str(folder[0])
    assert str(folder[0]) not in get("/", "read").text
    assert get("/metrics", "read", datasets=["demo"]).status_code == 403


def test_who_hangs_up_in_a_body_leaves_no_traceback(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    client = start()
    host, port = client.base_url.host, client.base_url.port
    for path in ("/ticket/msa", "/v1/jobs"):
        with socket.create_connection((host, port), timeout=60) as gone:
            head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 50\r\n\r\nq"
            gone.sendall(head.encode())
    until(lambda: client.get("/metrics").text.count('status="499"') >= 4)  # two lines each
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


@pytest.fixture(scope="module")
def shard(served) -> tuple[str, bytes, str]:
    """URL path, bytes and ETag of one shard."""
    entry = Dataset.open(served.folder).manifest.shards[0]
    data = (served.folder / "shards" / entry.name).read_bytes()
    return f"/shards/{entry.name}", data, f'"{entry.sha256}"'


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=100-299", slice(100, 300)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-16", slice(-16, None)),
        ("bytes=10-99999999999", slice(10, None)),
        ("bytes=-99999999999", slice(0, None)),
        (f"bytes=0-{'9' * 60}", slice(0, None)),
        *((past, 416) for past in ("bytes=99999999-", "bytes=-0", f"bytes={'9' * 30}-")),
        *((odd, 200) for odd in ("bytes=5-2", "bytes=", "bytes=-", "lines=1-2", "bytes=a-b")),
        ("bytes=0-1,4-5", 200),
    ],
)
def test_one_range_is_served_as_206_one_behind_the_end_is_416_and_others_get_the_whole(
    served, shard, header: str, wanted: slice | int
) -> None:
    path, data, _ = shard
    answer = served.get(path, headers={"Range": header})
    if isinstance(wanted, slice):
        first = range(len(data))[wanted][0]
        span = f"bytes {first}-{first + len(answer.content) - 1}/{len(data)}"
        assert (answer.status_code, answer.content) == (206, data[wanted])
        assert answer.headers["content-range"] == span
    elif wanted == 416:
        assert answer.status_code == 416
        assert answer.headers["content-range"] == f"bytes */{len(data)}"
    else:
        assert (answer.status_code, answer.content) == (200, data)


def test_if_range_with_another_etag_gets_the_whole(served, shard) -> None:
    path, data, etag = shard
    asked = {"Range": "bytes=0-9", "If-Range": etag}
    assert served.get(path, headers=asked).content == data[:10]
    assert served.get(path, headers=asked | {"If-Range": '"other"'}).content == data
    assert served.get(path, headers=asked | {"If-Range": f"W/{etag}"}).status_code == 200


@pytest.mark.parametrize("known", ["{}", "W/{}", '"x", {}', "*"])
def test_a_shard_has_its_sha256_as_etag_and_is_not_sent_to_who_knows_that(
    served, shard, known
) -> None:
    path, data, etag = shard
    whole, head = (served.client.request(m, f"{served.base}{path}") for m in ("GET", "HEAD"))
    assert whole.content == data and not head.content
    assert head.headers["content-length"] == str(len(data))
    assert whole.headers["etag"] == etag and whole.headers["accept-ranges"] == "bytes"
    answer = served.get(path, headers={"If-None-Match": known.format(etag)})
    assert answer.status_code == 304 and answer.headers["etag"] == etag


@settings(deadline=None)
@given(st.text(max_size=40).map("bytes={}".format) | st.text(max_size=40), st.integers(0, 10**12))
def test_any_range_header_is_within_the_object_or_refused(header: str, size: int) -> None:
    try:
        span = parse_range(header, size)
    except Problem as problem:
        assert problem.status == 416
    else:
        assert span is None or 0 <= span[0] < span[1] <= size

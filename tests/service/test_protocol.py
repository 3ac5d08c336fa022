"""HTTP as its documents have it, at the corners."""

from __future__ import annotations

import logging
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.featurize.job.stage import wait_until as until
from tests.service.conftest import Start

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


def test_a_dataset_registered_twice_is_there_once_in_whatever_case(start: Start, tmp_path) -> None:
    client = start()
    new = {"name": "X", "uri": str(tmp_path / "x"), "description": "ä\u2028\ttext\n"}
    for changes, status in (
        ({}, 201), ({}, 200), ({"description": "two"}, 200), ({"description": ""}, 200),
        ({"name": "x"}, 409), ({"uri": "/else"}, 409),
    ):  # fmt: skip
        made = client.post("/v1/datasets", json=new | changes)
        assert made.status_code == status, changes
        assert status == 409 or made.headers["Location"] == "/v1/datasets/X"
    assert client.get("/v1/datasets/X").json()["description"] == "two"
    gone = client.delete("/v1/datasets/X")
    assert gone.status_code == 204 and "content-type" not in gone.headers


def test_readers_see_no_places(start: Start, folder) -> None:
    start(auth="on", datasets={"demo": str(folder[0])})
    reader = start.as_("read")
    assert reader.get("/v1/datasets/demo").json()["uri"] is None
    assert str(folder[0]) not in reader.get("/").text
    assert start.as_("read", "jobs").get("/v1/datasets/demo").json()["uri"] == str(folder[0])


@pytest.mark.parametrize(("auth", "whose"), [("on", "private"), ("read", "public")])
def test_a_shared_cache_may_keep_only_what_anybody_may_read(
    start: Start, folder, auth: str, whose: str
) -> None:
    start(auth=auth, datasets={"demo": str(folder[0])})
    reader, manifest = start.as_("read"), f"/v1/datasets/demo/snapshots/{folder[2]}"
    shard = reader.get(manifest).json()["shards"][0]["name"]
    of_manifest = [f"{manifest}{path}" for path in ("", "/index", "/stats", "/chains")]
    for path in (*of_manifest, f"/v1/datasets/demo/shards/{shard}"):
        answer = reader.get(path)
        said = answer.headers["cache-control"].split(", ")
        assert (answer.status_code, said[0]) == (200, whose), path
        assert {"public", "private"} & set(said) == {whose} and "s-maxage" not in str(said)


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
def test_a_shard_has_its_sha256_as_etag_and_is_not_sent_to_who_has_it(served, shard, known) -> None:
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

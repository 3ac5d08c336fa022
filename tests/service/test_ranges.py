"""Shard bytes by range, as RFC 9110 section 14 says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evofeed.service.problems import Problem
from evofeed.service.requests.ranges import parse_range
from evofeed.store import Dataset


@pytest.fixture(scope="module")
def shard(served) -> tuple[str, bytes, str]:
    """URL path, bytes and ETag of one shard."""
    entry = Dataset.open(served.folder).manifest.shards[0]
    data = (served.folder / "shards" / entry.name).read_bytes()
    return f"/shards/{entry.name}", data, f'"{entry.sha256}"'


def test_the_whole_shard_comes_with_its_sha256_as_etag(served, shard) -> None:
    path, data, etag = shard
    answer = served.get(path)
    assert answer.content == data
    assert answer.headers["etag"] == etag
    assert answer.headers["accept-ranges"] == "bytes"


def test_head_tells_the_size_and_sends_nothing(served, shard) -> None:
    path, data, _ = shard
    answer = served.client.head(f"{served.base}{path}")
    assert answer.headers["content-length"] == str(len(data)) and not answer.content


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", slice(0, 1)),
        ("bytes=100-299", slice(100, 300)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-16", slice(-16, None)),
        ("bytes=10-99999999999", slice(10, None)),
        ("bytes=-99999999999", slice(0, None)),
    ],
)
def test_one_range_is_served_as_206(served, shard, header, span) -> None:
    path, data, _ = shard
    answer = served.get(path, headers={"Range": header})
    assert answer.status_code == 206
    assert answer.content == data[span]
    first = range(len(data))[span][0]
    expected = f"bytes {first}-{first + len(answer.content) - 1}/{len(data)}"
    assert answer.headers["content-range"] == expected


@pytest.mark.parametrize("header", ["bytes=99999999-", "bytes=-0", f"bytes={'9' * 30}-"])
def test_a_range_behind_the_end_is_416_with_the_size(served, shard, header) -> None:
    path, data, _ = shard
    answer = served.get(path, headers={"Range": header})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == f"bytes */{len(data)}"


@pytest.mark.parametrize(
    "header", ["bytes=5-2", "bytes=", "bytes=-", "lines=1-2", "bytes=a-b", "bytes=0-1,4-5"]
)
def test_a_malformed_or_multiple_range_gets_the_whole(served, shard, header) -> None:
    path, data, _ = shard
    answer = served.get(path, headers={"Range": header})
    assert (answer.status_code, answer.content) == (200, data)


def test_if_range_with_another_etag_gets_the_whole(served, shard) -> None:
    path, data, etag = shard
    asked = {"Range": "bytes=0-9", "If-Range": etag}
    assert served.get(path, headers=asked).content == data[:10]
    assert served.get(path, headers=asked | {"If-Range": '"other"'}).content == data
    assert served.get(path, headers=asked | {"If-Range": f"W/{etag}"}).status_code == 200


@pytest.mark.parametrize("known", ["{}", "W/{}", '"x", {}', "*"])
def test_a_known_etag_is_304(served, shard, known) -> None:
    path, _, etag = shard
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

"""HTTP as its documents have it, at the corners; behind proxies; names that lead nowhere."""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.featurize.job.stage import wait_until as until
from tests.service.conftest import Start, bearer

from evofeed.service import ServiceSettings, serving
from evofeed.service.access.auth import LOCAL, make_start_token, revoke_token
from evofeed.service.client import commands
from evofeed.service.database.database import Database
from evofeed.service.problems import Problem
from evofeed.service.requests import edge
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


BELIEVED = {  # proxies that are named: what is said to come from where, and who it is then
    (): [("203.0.113.7", "127.0.0.1")],
    ("10.0.0.5",): [("203.0.113.7", "127.0.0.1")],
    ("127.0.0.0/8",): [("198.51.100.1, 203.0.113.7, 127.0.0.2", "203.0.113.7")],
    ("127.0.0.1",): [
        ("203.0.113.7", "203.0.113.7"),
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),
        ("<script>alert(1)</script>", "unknown"),
        ("203.0.113.7, nobody", "unknown"),
    ],
}


@pytest.mark.parametrize("trusted", BELIEVED)
def test_nobody_chooses_an_address_but_a_named_proxy(
    start: Start, caplog: pytest.LogCaptureFixture, trusted: tuple[str, ...]
) -> None:
    client = start(auth="on", trusted_proxies=trusted)
    wrong = bearer(f"evf_{'0' * 16}_{'x' * 43}")
    for said, address in BELIEVED[trusted]:
        caplog.clear()
        headers = wrong | {"X-Forwarded-For": said, "X-Forwarded-Proto": "https"}
        assert client.get("/v1/me", headers=headers).status_code == 401
        refused = [r.getMessage() for r in caplog.records if "refused a token" in r.getMessage()]
        assert refused == [f"refused a token from {address}: the token is not valid"]
    form, more = {"token": start.token("read")}, {"X-Forwarded-Proto": "https"}
    login = client.post("/ui/login", data=form, headers=more)
    believed = any(one.startswith("127.0.0") for one in trusted)
    assert ("Secure" in login.headers["set-cookie"]) == believed


def test_what_holds_secrets_is_its_owners_whatever_folder_and_umask_say(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "service.sqlite3").touch(mode=0o644)
    before = os.umask(0)
    try:
        with serving(ServiceSettings(home=tmp_path, port=0, auth="off")) as url:
            httpx.get(f"{url}/v1/datasets")
            modes = {
                path.name: stat.S_IMODE(path.stat().st_mode)
                for path in tmp_path.iterdir()
                if path.is_file()
            }
    finally:
        os.umask(before)
    assert len(modes) >= 3 and set(modes.values()) == {0o600}, modes


def test_tokens_are_made_after_a_start_on_loopback_and_another_that_prints_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("EVOFEED_HOME", str(tmp_path))
    with Database(ServiceSettings(home=tmp_path).url) as database:
        database.upgrade()
        make_start_token(database)
        revoke_token(database, LOCAL.id)
    commands.create("t2", scope=["read"], days=1, as_json=True)
    assert json.loads(capsys.readouterr().out)["token"].startswith("evf_")


def test_a_password_that_a_browser_sends_by_itself_does_nothing_for_a_foreign_page(
    start: Start, folder
) -> None:
    client = start(auth="on", datasets={"demo": str(folder[0])})
    text = start.token("jobs")
    job, form = f"/v1/jobs/{'0' * 16}", {"q": ">a\nACDEF\n"}
    with httpx.Client(base_url=client.base_url, auth=("x", text)) as browser:
        for path, data in ((f"{job}/cancel", {}), (f"{job}/retry", {}), ("/ticket/msa", form)):
            assert browser.post(path, data=data).status_code == 404, "a program"
            foreign = browser.post(path, data=data, headers={"Origin": "https://evil.example"})
            assert foreign.status_code == 401, path


ODD = [
    "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "a%00b", "a%0ab", ".hidden",
    "a b", "é", "x" * 129, "'; DROP TABLE datasets; --", '"', "a\\b", "CON:", "*", "$(id)",
    "<script>", "~", "-x", "a..b/../c",
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_reach_no_file_and_no_500(served, odd) -> None:
    for path in ("/v1/datasets/{}", "/v1/datasets/{}/refs/main", "/v1/datasets/demo/refs/{}",
                 "/v1/datasets/demo/snapshots/{}", "/v1/datasets/demo/shards/{}",
                 "/v1/datasets/demo/shards/{}.arrow",
                 f"/v1/datasets/demo/snapshots/{served.second}/chains/{{}}"):  # fmt: skip
        url = f"{served.url}{path.format(odd)}"
        answer = served.client.get(httpx.URL(url))
        assert answer.status_code in (404, 422), (path, answer.text)
        assert b"root:" not in answer.content


def test_an_encoded_traversal_sent_raw_is_refused(served) -> None:
    """The client library tidies paths; a socket does not."""
    host, port = served.client.base_url.host, served.client.base_url.port
    for path in ("/v1/datasets/demo/shards/../../../../../etc/passwd",
                 "/v1/datasets/demo/shards/..%2f..%2f..%2fetc%2fpasswd",
                 "/static/../../../etc/passwd", "/static/..%2f..%2fsettings.py",
                 "//etc/passwd", "/datasets/../../etc/passwd"):  # fmt: skip
        with socket.create_connection((host, port), timeout=300) as raw:
            raw.sendall(
                f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join(iter(lambda s=raw: s.recv(65536), b""))
        assert answer.split()[1] in (b"404", b"422"), path
        assert b"root:" not in answer


def test_a_link_leads_out_of_no_opened_place(start: Start, folder, tmp_path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    (tmp_path / "also-opened").symlink_to(opened)  # the operator's own link is fine
    (opened / "out").symlink_to(folder[0])
    (opened / "in").symlink_to(opened / "data")
    (opened / "round").symlink_to(opened / "round")
    start(auth="on", dataset_roots=(str(tmp_path / "also-opened"),))
    publisher = start.as_("publish")
    for name, status in (("out", 403), ("in", 201), ("round", 201), ("data", 409)):
        new = {"name": name, "uri": str(opened / name)}
        assert publisher.post("/v1/datasets", json=new).status_code == status, name


def test_a_body_beyond_the_cap_is_413_with_or_without_a_length(start: Start) -> None:
    client = start(max_body=4096)
    big = b'{"name": "' + b"x" * 5000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/datasets", content=big, headers=headers).status_code == 413
    chunked = client.post("/v1/datasets", content=iter([big[:3000], big[3000:]]), headers=headers)
    assert chunked.status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/datasets", "/ui/login"])
def test_a_body_that_never_comes_is_408_and_hung_up_on(start: Start, monkeypatch, path) -> None:
    monkeypatch.setattr(edge, "_BODY_SECONDS", 0.2)
    client = start()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{{".encode()
    with socket.create_connection((client.base_url.host, client.base_url.port), 300) as raw:
        raw.sendall(head)
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ") and b"only 1 bytes of a body" in answer


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999999999", "x"])
def test_an_odd_content_length_is_refused(served, length) -> None:
    try:
        answer = served.client.post("/v1/datasets", headers={"Content-Length": length}, content=b"")
    except httpx.HTTPError:
        return  # the server hung up on it
    assert answer.status_code in (400, 413, 422)

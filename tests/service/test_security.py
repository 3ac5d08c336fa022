"""What no request can do."""

from __future__ import annotations

import httpx
import pytest
from tests.service.conftest import Start, bearer, token

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
    import socket

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


def test_with_tokens_only_opened_places_can_be_registered(start: Start, folder, tmp_path) -> None:
    client = start(auth="on", dataset_roots=("/data/open", "s3://bucket/a"))
    text = token(start.database(), "publish")
    for uri, status in (
        ("/data/open/x", 201),
        ("file:///data/open/y", 201),
        ("s3://bucket/a/b", 201),
        ("/data/opened", 403),
        ("/data/open/../secret", 403),
        ("s3://bucket/ab", 403),
        ("/etc", 403),
    ):
        new = {"name": f"d{abs(hash(uri))}", "uri": uri}
        assert client.post("/v1/datasets", json=new, headers=bearer(text)).status_code == status, (
            uri
        )


def test_a_link_leads_out_of_no_opened_place(start: Start, folder, tmp_path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    (tmp_path / "also-opened").symlink_to(opened)  # the operator's own link is fine
    (opened / "out").symlink_to(folder[0])
    (opened / "in").symlink_to(opened / "data")
    (opened / "round").symlink_to(opened / "round")
    client = start(auth="on", dataset_roots=(str(tmp_path / "also-opened"),))
    headers = bearer(token(start.database(), "publish"))

    def register(name: str) -> int:
        new = {"name": name, "uri": str(opened / name)}
        return client.post("/v1/datasets", json=new, headers=headers).status_code

    assert [register(name) for name in ("out", "in", "round", "data")] == [403, 201, 201, 409]


def test_names_that_differ_in_case_only_cannot_both_be(start: Start, folder) -> None:
    client = start()
    uri = str(folder[0])
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": uri}).status_code == 201
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": uri}).status_code == 200
    assert client.post("/v1/datasets", json={"name": "pdb", "uri": uri}).status_code == 409
    assert client.post("/v1/datasets", json={"name": "PDB", "uri": "/else"}).status_code == 409


def test_a_body_beyond_the_cap_is_413_with_or_without_a_length(start: Start) -> None:
    client = start(max_body=4096)
    big = b'{"name": "' + b"x" * 5000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/datasets", content=big, headers=headers).status_code == 413
    chunked = client.post("/v1/datasets", content=iter([big[:3000], big[3000:]]), headers=headers)
    assert chunked.status_code == 413
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("length", ["-1", "1e3", "99999999999999999999999999", "x"])
def test_an_odd_content_length_is_refused(served, length) -> None:
    try:
        answer = served.client.post("/v1/datasets", headers={"Content-Length": length}, content=b"")
    except httpx.HTTPError:
        return  # the server hung up on it
    assert answer.status_code in (400, 413, 422)


def test_a_malformed_body_is_a_4xx(start: Start) -> None:
    client = start()
    for body in (b"", b"null", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"name": 1}'):
        for kind in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
            answer = client.post("/v1/datasets", content=body, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (body, kind)
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_web_page_that_rebinds_its_name_to_loopback_is_turned_away(served) -> None:
    answer = served.client.get("/v1/datasets", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
    assert served.client.get("/healthz", headers={"Host": "localhost:99"}).status_code == 200


def test_a_form_post_of_a_foreign_page_registers_nothing(start: Start, folder) -> None:
    client = start()
    text = '{"name": "x", "uri": "/tmp"}'
    assert (
        client.post(
            "/v1/datasets", content=text, headers={"Content-Type": "text/plain"}
        ).status_code
        == 422
    )
    assert client.get("/v1/datasets").json()["datasets"] == []

"""Whatever is sent to whatever route, the service answers below 500 and stays up."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.service.conftest import Start

TEXT = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "0", "-1", "1e309", "NaN", "null", "%00", "..", "a" * 200, "'", '"', "\x00"]
    ),
    st.sampled_from(
        ["main", "demo", "0" * 64, "0" * 16, str(2**63), str(2**31), "true", "2020-01-01"]
    ),
    st.integers(-(2**70), 2**70).map(str),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
HEADERS = st.dictionaries(
    st.sampled_from(["If-Match", "If-None-Match", "If-Range", "Range", "Idempotency-Key", "Accept",
                     "Authorization", "Cookie", "X-Request-Id", "Content-Type", "Host"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30),
    max_size=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def operations(served) -> list[tuple[str, str, list[str], list[str]]]:
    """Method, path, query parameters and body fields of every route, pages included."""
    schema = served.client.get("/openapi.json").json()
    found = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            query = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = body.get("schema", {}).get("$ref", "").rsplit("/", 1)[-1]
            fields = list(schema["components"]["schemas"].get(name, {}).get("properties", {}))
            found.append((method.upper(), path, query, fields))
    found += [
        ("GET", path, ["ref", "cursor", "min_length", "q", "sort", "page", "at", "where"], [])
        for path in ("/", "/ui/datasets/{name}", "/ui/datasets/{name}/export.csv")
    ]
    chain = "/ui/datasets/{name}/snapshots/{digest}/chains/{chain_id}"
    found += [
        ("GET", f"{chain}{end}", [], []) for end in ("", "/alignment", "/files/{chain_id}.a3m")
    ]
    return [*found, ("GET", "/ui/jobs/{job_id}", [], []), ("POST", "/ui/login", [], [])]


@pytest.mark.slow
@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_is_answered_with_a_500(fuzzed, operations, data) -> None:
    client, digest = fuzzed
    method, path, query, fields = data.draw(st.sampled_from(operations))
    known = {"name": "demo", "digest": digest, "ref": "main", "chain_id": "0003_A"}

    def value(match: re.Match[str]) -> str:
        good = known.get(match[1])
        text = data.draw(st.just(good) | TEXT if good else TEXT)
        return quote(
            text.encode("utf-8", "surrogatepass"), safe=data.draw(st.sampled_from(["", "/"]))
        )

    url = re.sub(r"\{(\w+)\}", value, path)
    params = {name: data.draw(TEXT) for name in data.draw(st.lists(st.sampled_from(query or [""])))}
    options: dict[str, Any] = {"params": params, "headers": data.draw(HEADERS)}
    if method in ("POST", "PUT"):
        shaped = st.fixed_dictionaries({}, optional=dict.fromkeys(fields, TEXT | JSON))
        body = json.dumps(data.draw(shaped | JSON), allow_nan=True)
        options["content"] = body.encode("utf-8", "surrogatepass")
        options["headers"] = {"Content-Type": "application/json"} | options["headers"]
    try:
        answer = client.request(method, url, **options)
    except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeEncodeError):
        return  # the client library refuses to send it
    assert answer.status_code < 500, (method, url, options, answer.text)
    assert answer.headers.get("x-request-id") or answer.status_code == 400  # 400: no HTTP at all


@pytest.fixture(scope="module")
def fuzzed(folder, tmp_path_factory) -> Any:
    """A service whose dataset may be removed and registered again."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        start = Start(tmp_path_factory.mktemp("fuzz"), stack, lambda: "")
        client = start(datasets={"demo": str(folder[0])}, max_jobs=0, allowed_hosts=())
        yield client, folder[2]

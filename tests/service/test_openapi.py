"""What /openapi.json says of the routes is true, and every refusal is a problem of one form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest


@pytest.fixture(scope="module")
def schema(served) -> dict[str, Any]:
    found: dict[str, Any] = served.client.get("/openapi.json").json()
    return found


def operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_everything_a_caller_may_send_is_described(schema) -> None:
    for method, path, operation in operations(schema):
        assert operation["description"], (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter.get("description"), (method, path, parameter["name"])


def test_a_route_tells_its_scope_and_whether_it_takes_a_key(schema) -> None:
    paths = schema["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/v1/jobs"]["post"]["security"][0] == {"token": ["jobs"]}

    def takes_key(path: str) -> int:
        names = [p["name"] for p in paths[path]["post"].get("parameters", [])]
        return names.count("Idempotency-Key")

    assert takes_key("/v1/jobs") == 1
    assert takes_key("/v1/tokens") == 0, "its answer holds a secret and is never kept"


JSON = {"Content-Type": "application/json"}
FILTERS = [
    "nope", "[]", "{}", '{"column": "num_res"}', '{"all": {}}', '{"all": [], "any": []}',
    '{"not":' * 30 + '{"all":[]}' + "}" * 30, "[" * 100_000,
    json.dumps({"all": [{"all": []}] * 300}),
    *(f'{{"column": {rest}}}' for rest in (
        '"shard", "op": "==", "value": "x"', '"num_res", "op": "LIKE", "value": 1',
        '"num_res", "op": "<", "value": "1; DROP TABLE datasets"',
        '"num_res", "op": "<", "value": 1e400', '"num_res", "op": "<", "value": true',
        '"num_res", "op": "in", "value": 3', '"num_res", "op": "<", "value": 1, "extra": 1',
        '"release_date", "op": "<", "value": "yesterday"',
        '"is_distillation", "op": "==", "value": 1', '"method", "op": "==", "value": "\\u0000"',
        '["num_res"], "op": "<", "value": 1',
    )),
]  # fmt: skip
QUERIES = [
    "cursor=x", "limit=0", "limit=1001", "limit=9999999999999999999999", "min_length=-1",
    "min_length=x", "colour=red", "max_resolution=nan", "released_from=2020-13-01",
    "released_from=0", "columns=nope", "columns=shard", "split=train", "is_distillation=perhaps",
]  # fmt: skip
TOKENS = [
    '"x", "seconds": true', '"x", "seconds": NaN', '"x", "seconds": Infinity', '"x\\u0000"',
    '"x", "datasets": [1]',
]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/v1/datasets/nothing", {}, 404),
        *(
            ("GET", f"/v1/datasets/demo/{path}", {}, 404)
            for path in ("refs/nope", f"snapshots/{'0' * 64}", "shards/nope.arrow")
        ),
        ("PATCH", "/v1/datasets", {}, 405),
        ("DELETE", "/healthz", {}, 405),
        ("PUT", "/v1/datasets/demo/refs/main", {"json": {"digest": "0" * 64}}, 428),
        *(("GET", f"/v1/datasets/demo/chains?{query}", {}, 422) for query in QUERIES),
        *(("POST", "/v1/datasets/demo/snapshots/{digest}/chains/search",
           {"content": f'{{"where": {where}}}', "headers": JSON}, 422) for where in FILTERS),
        *(("POST", "/v1/tokens",
           {"content": f'{{"scopes": ["read"], "label": {rest}}}', "headers": JSON}, 422)
          for rest in TOKENS),
        *(("POST", "/v1/datasets/demo/urls", {"json": {"shards": shards}}, 422)
          for shards in ([], ["../x"], [1], ["a.arrow"] * 1001, None)),
        ("POST", "/v1/datasets/demo/urls", {"json": {"shards": ["x.arrow"]}}, 404),
        ("POST", "/v1/datasets", {"content": b"{"}, 422),
        ("POST", "/v1/datasets", {"content": b"\xff" * 9}, 422),
        ("POST", "/v1/datasets", {"data": {"name": "x"}}, 422),
        ("POST", "/v1/datasets", {"content": '{"name": "x", "uri": "/tmp"}',  # of a foreign page
                                  "headers": {"Content-Type": "text/plain"}}, 422),
        ("POST", "/v1/datasets", {"content": b"x" * (2 << 20)}, 413),
        ("GET", "/v1/config", {"headers": {"Host": "rebound.example"}}, 421),
    ],
)  # fmt: skip
def test_every_refusal_is_a_problem_of_one_form(
    served, schema, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    path = path.replace("{digest}", served.second)
    answer: httpx.Response = served.client.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert len(answer.text) < 3000
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-request-id"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    problem = answer.json()
    form = schema["components"]["schemas"]["Problem"]
    assert set(form["required"]) <= set(problem) <= set(form["properties"])
    assert problem["status"] == status and problem["detail"] and problem["next"]
    assert re.fullmatch(r"[a-z_]+", problem["code"])


def test_a_generated_client_has_names_tags_and_statuses(schema) -> None:
    seen = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(set(seen)) == len(seen) and {"get_ref", "put_ref", "submit_job"} <= set(seen)
    for method, path, operation in operations(schema):
        assert operation["tags"] and operation["summary"] != operation["operationId"]
        assert {"4XX", "5XX"} <= set(operation["responses"]), (method, path)
    assert schema["servers"]

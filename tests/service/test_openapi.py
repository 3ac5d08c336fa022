"""What /openapi.json says of the routes is true, and every refusal is a problem of one form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from evofeed.service.routes import datasets, jobs, refs, rows, shards, tokens

BODIES: list[type[BaseModel]] = [
    rows.ChainSearch,
    datasets.NewDataset,
    jobs.NewJob,
    refs.RefTarget,
    refs.PolicyBody,
    shards.Wanted,
    tokens.NewToken,
]


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


def test_every_body_has_an_example_that_passes(schema) -> None:
    named = set()
    for _, _, operation in operations(schema):
        content = operation.get("requestBody", {}).get("content", {})
        parts = [part["schema"] for kind, part in content.items() if kind == "application/json"]
        named |= {part["$ref"].rsplit("/", 1)[1] for part in parts}
    assert named == {body.__name__ for body in BODIES}
    for body in BODIES:
        (example,) = schema["components"]["schemas"][body.__name__]["examples"]
        body.model_validate(example)


def test_an_example_job_and_search_are_what_the_service_takes(served) -> None:
    from evofeed.service.jobs.config import checked_crop

    (job,) = jobs.NewJob.model_config["json_schema_extra"]["examples"]  # type: ignore
    assert checked_crop(job["crop"]) is not None
    (search,) = rows.ChainSearch.model_config["json_schema_extra"]["examples"]  # type: ignore
    answer = served.client.post(
        f"{served.base}/snapshots/{served.second}/chains/search", json=search
    )
    assert answer.status_code == 200 and len(answer.json()["chains"]) == 10


def test_an_answer_has_the_media_type_that_is_documented(served, schema) -> None:
    shard = served.client.get(f"{served.base}/snapshots/{served.second}").json()["shards"][0]
    known = {"name": "demo", "ref": "main", "digest": served.second, "shard": shard["name"]}
    query = {"world_size": 2, "preset": "prediction"}
    seen = 0
    for method, path, operation in operations(schema):
        needed = set(re.findall(r"\{(\w+)\}", path))
        if method != "get" or not needed <= set(known):
            continue
        wanted = {p["name"] for p in operation.get("parameters", []) if p.get("required")}
        wanted |= {"preset"} & {p["name"] for p in operation.get("parameters", [])}
        answer = served.client.get(
            path.format(**known), params={name: query[name] for name in wanted & set(query)}
        )
        assert answer.status_code == 200, (path, answer.text)
        reported = set(operation["responses"]["200"]["content"])
        assert answer.headers["content-type"].partition(";")[0] in reported, path
        seen += 1
    assert seen > 15


def test_a_route_tells_its_scope_and_whether_it_takes_a_key(schema) -> None:
    paths = schema["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert paths["/v1/jobs"]["post"]["security"][0] == {"token": ["jobs"]}

    def takes_key(path: str) -> int:
        names = [p["name"] for p in paths[path]["post"].get("parameters", [])]
        return names.count("Idempotency-Key")

    assert takes_key("/v1/jobs") == 1
    assert takes_key("/v1/tokens") == 0, "its answer holds a secret and is never kept"


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/v1/nothing", {}, 404),
        ("GET", "/v1/datasets/nothing", {}, 404),
        ("PATCH", "/v1/datasets", {}, 405),
        ("DELETE", "/healthz", {}, 405),
        ("PUT", "/v1/datasets/demo/refs/main", {"json": {"digest": "0" * 64}}, 428),
        ("GET", "/v1/datasets/demo/chains?cursor=x", {}, 422),
        ("GET", "/v1/datasets/demo/chains?limit=0", {}, 422),
        ("POST", "/v1/datasets", {"content": b"{"}, 422),
        ("POST", "/v1/datasets", {"content": b"\xff" * 9}, 422),
        ("POST", "/v1/datasets", {"data": {"name": "x"}}, 422),
        ("POST", "/v1/datasets", {"content": b"x" * (2 << 20)}, 413),
        ("GET", "/v1/config", {"headers": {"Host": "rebound.example"}}, 421),
    ],
)
def test_every_refusal_is_a_problem_of_one_form(
    served, schema, method: str, path: str, options: dict[str, Any], status: int
) -> None:
    answer: httpx.Response = served.client.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store" and answer.headers["x-request-id"]
    problem = answer.json()
    form = schema["components"]["schemas"]["Problem"]
    assert set(form["required"]) <= set(problem) <= set(form["properties"])
    assert problem["status"] == status and problem["detail"] and problem["next"]
    assert re.fullmatch(r"[a-z_]+", problem["code"])


def test_a_generated_client_has_names_tags_and_statuses(schema) -> None:
    seen = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(set(seen)) == len(seen) and {"get_ref", "put_ref", "submit_job"} <= set(seen)
    reported = {tag["name"] for tag in schema["tags"]}
    for method, path, operation in operations(schema):
        assert (
            set(operation["tags"]) <= reported and operation["summary"] != operation["operationId"]
        )
        assert all(re.fullmatch(r"\d{3}", status) for status in operation["responses"]), path
        assert {"422", "503"} <= set(operation["responses"]), (method, path)
    assert schema["servers"]

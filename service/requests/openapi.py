"""What FastAPI cannot know of our routes: the problem answers, the bearer token, the words."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from evofeed.service.problems import TICKETS

_PROBLEM: dict[str, Any] = {
    "type": "object",
    "description": "RFC 9457 problem details with a stable `code` and the `next` step.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "next": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"where": {"type": "string"}, "what": {"type": "string"}},
            },
        },
    },
    "required": ["type", "title", "status", "code", "detail", "next"],
}


_TAGS: Final = {
    "health": "Is it alive, is it ready, what can it do.",
    "datasets": "Names for places.",
    "refs": "Names for snapshots: moved by compare-and-swap, within a policy, with a history.",
    "snapshots": "Immutable sets of chains: manifest and index.",
    "chains": "Pages of chains and complexes that pass a filter, statistics, and files of them.",
    "shards": "Bytes, by range, or URLs to them.",
    "plans": "Which rank reads which chains.",
    "jobs": "Featurize jobs: submit, watch, cancel, retry, and what they could not do.",
    "tickets": "Alignments, by the protocol of ColabFold's MSA server.",
    "tokens": "Tokens and the audit.",
}
_REFUSED: Final = {
    "401": "no token, or one that is not good",
    "403": "the token may not do this",
    "404": "there is no such thing",
    "405": "this path has other methods",
    "409": "it cannot be done as things are",
    "412": "the ref points elsewhere",
    "413": "the body is too large",
    "416": "the range begins behind the end",
    "421": "this host name is not served here",
    "422": "a value is not as it must be",
    "428": "say where the ref points now",
    "429": "too much at once",
    "500": "our own mistake; the log says more",
    "502": "the store holds something else than it should",
    "503": "the store or the database does not answer, or not in time",
}


def describe_api(app: FastAPI) -> None:
    """Give `app.openapi()` the refusals, the token where one is asked for, and the words."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                    tags=[{"name": n, "description": text} for n, text in _TAGS.items()],
                    servers=[{"url": "/", "description": "this service"}],
                    separate_input_output_schemas=False,
                )
            )
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    parts = schema.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    ticket = {"application/json": {"schema": {"$ref": "#/components/schemas/TicketView"}}}
    parts["responses"] = {
        f"Refused{status}": {"description": text, "content": problem}
        for status, text in _REFUSED.items()
    }
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            text = operation["description"]
            operation["summary"] = text.split("\n")[0].rstrip(".")
            answers = operation["responses"]
            for status in _refusals(path, method, operation):
                if path.startswith(TICKETS):
                    answers[status] = {"description": _REFUSED[status], "content": ticket}
                    continue
                own = answers.get(status, {}).get("content", {})
                if not own or "HTTPValidationError" in str(own):  # FastAPI's, not the route's
                    answers[status] = {"$ref": f"#/components/responses/Refused{status}"}
                else:
                    answers[status]["description"] = _REFUSED[status]
                    answers[status]["content"] = own | problem
    return schema


def _refusals(path: str, method: str, operation: dict[str, Any]) -> list[str]:
    """Statuses an operation may refuse a request with."""
    found = {"405", "421", "422", "429", "500", "503"}
    if operation.get("security"):
        found |= {"401", "403"}
    if "{" in path or path.startswith(("/v1/jobs", "/ticket")):
        found |= {"404", "502"}
    if method in ("post", "put", "patch", "delete"):
        found |= {"409", "413"}
    if path.endswith("/refs/{ref}") and method != "get":
        found |= {"412", "428"}
    if "206" in operation["responses"]:
        found |= {"416"}
    return sorted(found)

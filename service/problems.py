"""The answers to refused requests: problem JSON with a code, a message and the next step.

RFC 9457 (`application/problem+json`) with two added members: `code`, a
stable word for programs, and `next`, what the caller should do.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from evofeed.base.errors import (
    DatasetMissing,
    EvofeedError,
    InputError,
    RefConflict,
    SchemaMismatch,
    ServiceError,
    ShardCorrupt,
    ShardMissing,
)

_log = logging.getLogger("evofeed.service")
TICKETS = ("/ticket/", "/result/", "/template/")
"""Routes of ColabFold's protocol, whose clients read `id` and `status` of every answer."""
_GONE = 499  # nginx's code: the client closed the connection before its request was complete


class Problem(ServiceError):
    """A refused request: a stable `code`, a message and the `next` step.

    After `wait` seconds the caller may try again (`Retry-After`); 0 says nothing of it. `errors`
    has one `{"where", "what"}` for each wrong field.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        next: str,  # noqa: A002 - the field's name in the answer
        wait: float = 0.0,
        headers: Mapping[str, str] | None = None,
        errors: list[dict[str, str]] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.next = next
        self.headers = dict(headers or {})
        if wait:
            self.headers["Retry-After"] = str(max(1, math.ceil(wait)))
        self.errors = errors or []

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "code": self.code,
            "detail": self.message,
            "next": self.next,
        }
        return body | ({"errors": self.errors} if self.errors else {})

    def response(self, path: str = "") -> Response:
        """The HTTP response for a path; clients of tickets expect a word as `status`."""
        body, kind = self.body(), "application/problem+json"
        if path.startswith(TICKETS):
            words = {429: "RATELIMIT", 503: "MAINTENANCE"}
            word = "MAINTENANCE" if self.code == "no_search" else words.get(self.status, "ERROR")
            body, kind = {**body, "id": "", "status": word}, "application/json"
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(json.dumps(body), self.status, headers, kind)


# The first match is used, so subclasses come first.
_STATUS: tuple[tuple[type[EvofeedError], int, str, str], ...] = (
    (DatasetMissing, 404, "not_found", "list: GET /v1/datasets, GET .../snapshots"),
    (ShardMissing, 404, "shard_missing", "read the manifest again; run `evofeed snapshots verify`"),
    (RefConflict, 412, "ref_moved", "read the ref again and retry with its new ETag"),
    (ShardCorrupt, 502, "shard_corrupt", "run `evofeed snapshots verify` on the dataset"),
    (SchemaMismatch, 502, "unknown_format", "update the service"),
    (InputError, 422, "bad_input", "correct the value and send the request again"),
    (EvofeedError, 502, "store_failed", "retry; if it stays, read the service's log"),
)


def as_problem(error: Exception) -> Problem | None:
    """The problem for an error; None for a bug of the service."""
    match error:
        case Problem():
            return error
        case EvofeedError():
            _, status, code, hint = next(row for row in _STATUS if isinstance(error, row[0]))
            return Problem(status, code, error.message, next=hint)
        case OperationalError() | InterfaceError() | PoolTimeout():
            # Its address stays in the log.
            _log.warning("the database does not answer: %s", str(error).splitlines()[0][:300])
            hint = "retry shortly; shards, indexes and manifests go on for known tokens"
            message = "the service's database does not answer"
            return Problem(503, "database_away", message, next=hint, wait=2)
    return None


def _invalid(error: RequestValidationError) -> Problem:
    errors = [
        {
            "where": ".".join(str(part) for part in item["loc"]),
            "what": str(item["msg"]).removeprefix("Value error, "),
        }
        for item in error.errors()
    ]
    first = f"{errors[0]['where']}: {errors[0]['what']}" if errors else "the request is malformed"
    hint = "see /openapi.json for this route"
    return Problem(422, "bad_request", first, next=hint, errors=errors)


def _from_http(request: Request, error: HTTPException) -> Problem:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_").replace("-", "_")
    message, headers = str(error.detail), dict(error.headers or {})
    if error.status_code in (404, 405):  # raised by the router alone: no route matched
        message = f"no route {request.method[:16]} {request.url.path[:100]!r}"
    if error.status_code == 405:  # the router only knows the methods of the first route it found
        routes = [r for r in request.app.routes if r.path_regex.match(request.url.path)]
        methods = {method for route in routes for method in route.methods}
        headers["Allow"] = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    hint = "see /openapi.json for the routes there are"
    return Problem(error.status_code, code, message, next=hint, headers=headers)


def unexpected(error: Exception, request_id: str) -> Problem:
    """The answer to a bug of the service; details are only in the log."""
    _log.error("unexpected error, request %s", request_id, exc_info=error)
    hint = f"give the request id {request_id} to the service's operator"
    return Problem(500, "internal_error", "the service failed on this request", next=hint)


def install_problems(app: FastAPI, page: Callable[[Request, Problem], Response | None]) -> None:
    """Register handlers that answer errors of `app` as problems; `Edge` handles the rest."""

    def answer(request: Request, error: Exception) -> Response:
        match error:
            case ClientDisconnect():
                return Response(status_code=_GONE)  # never read, only counted
            case RequestValidationError():
                problem = _invalid(error)
            case HTTPException():
                problem = _from_http(request, error)
            case _:
                problem = as_problem(error) or unexpected(error, "")
        return page(request, problem) or problem.response(request.url.path)

    for kind in (ClientDisconnect, OperationalError, InterfaceError, PoolTimeout, EvofeedError,
                 RequestValidationError, HTTPException):  # fmt: skip
        app.add_exception_handler(kind, answer)


class WrongField(BaseModel):
    """An invalid field of a request."""

    where: str
    what: str


class ProblemView(BaseModel, title="Problem"):
    """RFC 9457 problem details with a stable `code` and the `next` step."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    next: str
    errors: list[WrongField] = Field([], description="left out where it is not about fields")


def refusals(media_type: str, model: str) -> dict[int | str, dict[str, Any]]:
    """The `responses` of routes that refuse with a model of this name."""
    content = {media_type: {"schema": {"$ref": f"#/components/schemas/{model}"}}}
    return {
        "4XX": {"description": "refused; says why and what to do next", "content": content},
        "5XX": {"description": "failed, as does a store or a database", "content": content},
    }


def describe_api(app: FastAPI) -> None:
    """Add the schema of problems, and the security scheme if tokens are needed, to OpenAPI."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description,
                routes=app.routes, servers=[{"url": "/", "description": "this service"}],
                separate_input_output_schemas=False,
            )  # fmt: skip
            parts = schema["components"]
            problem = ProblemView.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= problem.pop("$defs") | {"Problem": problem}
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path in schema["paths"].values():
                for operation in path.values():
                    operation["summary"] = operation["description"].split("\n")[0].rstrip(".")
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]

"""Routes that cannot exist without saying who may call them.

Every endpoint carries `@scope(...)`; a route without one fails when the app is
made. The check runs before the body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from evofeed.service.auth import LOCAL, SCOPES, Principal, authenticate
from evofeed.service.idempotency import KEY_PATTERN, run_once
from evofeed.service.problems import Problem
from evofeed.service.state import Service

PUBLIC: Final = "public"
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Mark:
    """What `@scope` says of an endpoint."""

    scope: str
    counted: bool
    repeatable: bool


def scope(name: str, *, counted: bool = True, repeatable: bool = True) -> Callable[[_F], _F]:
    """Say which scope an endpoint needs.

    Args:
        name: one of `SCOPES`, or `PUBLIC` for no token at all.
        counted: False keeps calls out of the rate limit (shard bytes).
        repeatable: False refuses an Idempotency-Key, for answers that must not be kept.
    """
    if name not in (PUBLIC, *SCOPES):
        raise ValueError(f"no scope {name!r}")

    def mark(endpoint: _F) -> _F:
        endpoint.__scope__ = _Mark(name, counted, repeatable)  # type: ignore[attr-defined]
        return endpoint

    return mark


class ScopedRoute(APIRoute):
    """A route that admits, counts and de-duplicates before its endpoint runs."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if marked := getattr(endpoint, "__scope__", None):
            options["openapi_extra"] = _described(marked, options.get("methods") or ())
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with admission in front."""
        answer = super().get_route_handler()
        marked: _Mark | None = getattr(self.endpoint, "__scope__", None)
        if marked is None:
            raise TypeError(f"{self.path} has no @scope: say who may call it")

        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            principal = await _admit(service, request, marked)
            request.state.principal = principal
            if request.method == "POST" and "idempotency-key" in request.headers:
                if not marked.repeatable:
                    raise _not_kept()
                return await run_once(service.database, principal.id, request, answer)
            return await answer(request)

        return handle


async def _admit(service: Service, request: Request, marked: _Mark) -> Principal:
    if marked.scope == PUBLIC or not service.settings.auth_on:
        principal = LOCAL
    else:
        principal = await run_in_threadpool(authenticate, service.database, request)
        principal.require(marked.scope)
        if (name := request.path_params.get("name")) is not None:
            principal.require_dataset(str(name))
    if marked.counted and marked.scope != PUBLIC:
        client = request.client.host if request.client else "unknown"
        service.limiter.spend(client if principal is LOCAL else principal.id)
    return principal


def _described(marked: _Mark, methods: Collection[str]) -> dict[str, Any]:
    """What OpenAPI is to say of a route's mark."""
    if marked.scope == PUBLIC:
        return {"security": []}
    extra: dict[str, Any] = {"security": [{"token": [marked.scope]}, {}]}  # {}: on loopback
    if "POST" in methods and marked.repeatable:
        text = "sent twice with the same key, the request is done once; kept for a day"
        extra["parameters"] = [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": text,
                "schema": {"type": "string", "pattern": KEY_PATTERN},
            }
        ]
    return extra


def _not_kept() -> Problem:
    return Problem(
        422,
        "idempotency",
        "answers of this route are never kept, so it takes no Idempotency-Key",
        next="send it without",
    )


def make_router(prefix: str = "", tag: str = "") -> APIRouter:
    """A router whose routes must carry `@scope`."""
    return APIRouter(prefix=prefix, route_class=ScopedRoute, tags=[tag] if tag else None)


# Both are async only so that they do not cost a thread each.
async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


ServiceDep = Annotated[Service, Depends(_service)]
PrincipalDep = Annotated[Principal, Depends(_principal)]
Limit = Annotated[int, Query(ge=1, le=1000, description="rows of a page, at most")]

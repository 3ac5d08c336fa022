"""Routes that cannot exist without saying who may call them.

Every endpoint carries `@scope(...)`; a route without one fails when the app is
made. The check runs before the body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from evofeed.service.auth import LOCAL, SCOPES, Principal, authenticate
from evofeed.service.idempotency import run_once
from evofeed.service.state import Service

PUBLIC: Final = "public"
_F = TypeVar("_F", bound=Callable[..., Any])


def scope(name: str, *, counted: bool = True) -> Callable[[_F], _F]:
    """Say which scope an endpoint needs.

    Args:
        name: one of `SCOPES`, or `PUBLIC` for no token at all.
        counted: False keeps calls out of the rate limit (shard bytes).
    """
    if name not in (PUBLIC, *SCOPES):
        raise ValueError(f"no scope {name!r}")

    def mark(endpoint: _F) -> _F:
        endpoint.__scope__ = (name, counted)  # type: ignore[attr-defined]
        return endpoint

    return mark


class ScopedRoute(APIRoute):
    """A route that admits, counts and de-duplicates before its endpoint runs."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with admission in front."""
        answer = super().get_route_handler()
        marked: tuple[str, bool] | None = getattr(self.endpoint, "__scope__", None)
        if marked is None:
            raise TypeError(f"{self.path} has no @scope: say who may call it")

        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            principal = await _admit(service, request, *marked)
            request.state.principal = principal
            if request.method == "POST" and "idempotency-key" in request.headers:
                return await run_once(service.database, principal.id, request, answer)
            return await answer(request)

        return handle


async def _admit(service: Service, request: Request, scope: str, counted: bool) -> Principal:
    if scope == PUBLIC or not service.settings.auth_on:
        principal = LOCAL
    else:
        principal = await run_in_threadpool(authenticate, service.database, request)
        principal.require(scope)
        if (name := request.path_params.get("name")) is not None:
            principal.require_dataset(str(name))
    if counted and scope != PUBLIC:
        client = request.client.host if request.client else "unknown"
        service.limiter.spend(client if principal is LOCAL else principal.id)
    return principal


def make_router(prefix: str = "", tag: str = "") -> APIRouter:
    """A router whose routes must carry `@scope`."""
    return APIRouter(prefix=prefix, route_class=ScopedRoute, tags=[tag] if tag else None)


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


ServiceDep = Annotated[Service, Depends(_service)]
PrincipalDep = Annotated[Principal, Depends(_principal)]

"""Routes that must declare who may call them.

Every endpoint carries `@scope(...)`; a route without one fails when the app is
made. The check runs before the body is read.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import ipaddress
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import orjson
from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError, create_model
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from evofeed.service.access.auth import (
    ANONYMOUS,
    LOCAL,
    PUBLIC,
    SCOPES,
    Principal,
    presented,
    unauthorized,
)
from evofeed.service.problems import Problem, refusals
from evofeed.service.requests.forms import require_own_form
from evofeed.service.snapshots.catalog import away
from evofeed.service.state import Service

_log = logging.getLogger("evofeed.service.access")


async def _admitted(service: Service, request: Request, mark: Mark) -> Principal:
    """The authorized caller of a request (raises Problem: 401 and 403)."""
    if PUBLIC in mark.scopes:
        return ANONYMOUS
    principal = await _identified(service, request, mark)
    if principal is ANONYMOUS and not principal.scopes & set(mark.scopes):
        raise unauthorized("this needs a token")
    principal.require(*mark.scopes)
    if (name := request.path_params.get("name")) is not None:
        principal.require_dataset(str(name))
    return principal


async def _identified(service: Service, request: Request, mark: Mark) -> Principal:
    if service.settings.auth == "off":
        return LOCAL
    shown = presented(request, form=mark.form)
    if not any(shown) and service.settings.auth == "read":
        return ANONYMOUS
    if (cached := service.authority.cached(*shown)) is not None:
        return cached
    ask = functools.partial(service.authority.principal, *shown, reads_bytes=mark.reads_bytes)
    try:
        return await run_in_threadpool(ask)
    except Problem as problem:
        if any(shown):  # without a token nothing was guessed
            _log.warning("refused a token from %s: %s", address_of(request), problem.message)
        raise


def address_of(request: Request) -> str:
    """Where a request comes from; a proxy forwards the header unchecked."""
    host = request.client.host if request.client else ""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "unknown"


_F = TypeVar("_F", bound=Callable[..., Any])
_here: contextvars.ContextVar[_Context] = contextvars.ContextVar("evofeed_here")


@dataclass(frozen=True, slots=True)
class Mark:
    """The arguments of an endpoint's `@scope`."""

    scopes: tuple[str, ...]
    reads_bytes: bool
    heavy: bool
    form: bool


def scope(
    *names: str, reads_bytes: bool = False, heavy: bool = False, form: bool = False
) -> Callable[[_F], _F]:
    """Declare the scope that an endpoint needs.

    Args:
        names: of `SCOPES`, any of which will do; or `PUBLIC` for no token at all.
        reads_bytes: it works for a while without the database.
        heavy: it walks an index, so that few of them run at once.
        form: a form of our own pages sends it: a browser's session will do, if the form
            carries the word that only pages of that session know.
    """
    if not names or not set(names) <= {PUBLIC, *SCOPES}:
        raise ValueError(f"no scopes {names!r}")

    def mark(endpoint: _F) -> _F:
        endpoint.__scope__ = Mark(names, reads_bytes, heavy, form)  # type: ignore[attr-defined]
        return endpoint

    return mark


class _StrictRequest(Request):
    """A request whose JSON is valid by RFC 8259 and storable in every database."""

    async def json(self) -> Any:
        """The body as parsed JSON: without NaN, Infinity, a NUL or half a surrogate pair."""
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = orjson.loads(body)
            if b"\\u0000" in body and b"\\u0000" in orjson.dumps(self._json):
                raise json.JSONDecodeError("a text holds NUL", "", 0)
        return self._json


class ScopedRoute(APIRoute):
    """A route that admits before its endpoint runs in its dataset's threads."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        marked: Mark | None = getattr(endpoint, "__scope__", None)
        if marked is None:
            raise TypeError(f"{path} has no @scope: say who may call it")
        self.mark = marked
        public = PUBLIC in marked.scopes
        described = {"security": [] if public else [{"token": [name]} for name in marked.scopes]}
        options["openapi_extra"] = (options.get("openapi_extra") or {}) | described
        if not inspect.iscoroutinefunction(endpoint):
            endpoint = _in_thread(endpoint, marked)
        super().__init__(path, endpoint, **options)
        self._path = self._path_alone(endpoint)

    def _path_alone(self, endpoint: Callable[..., Any]) -> type[BaseModel] | None:
        """The types of the path's parts, for a GET endpoint that takes only them.

        FastAPI's way of finding arguments costs as much as the rest of such an answer.
        """
        hints = get_type_hints(endpoint, include_extras=True)
        names = self.param_convertors.keys()
        if hints.pop("return", None) is not Response or self.methods != {"GET"}:
            return None
        if hints.keys() != names | {"ctx"}:
            return None
        fields: dict[str, Any] = {name: (hints[name], ...) for name in names}
        return create_model("Path", **fields)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with admission in front."""
        answer, mark = super().get_route_handler(), self.mark

        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            request = _StrictRequest(request.scope, request.receive)
            principal = await _admitted(service, request, mark)
            ctx = _Context(request, service, principal)
            _here.set(ctx)
            if mark.heavy:
                service.work.require_room(ctx.dataset, ctx.caller, heavy=True)
            if request.method not in ("GET", "HEAD"):
                await request.body()  # a body that is too large is refused before parsing
            if mark.form:
                await require_own_form(service, request)
            if self._path is None or (values := _checked(self._path, request)) is None:
                return await answer(request)
            response: Response = await self.endpoint(ctx=ctx, **values)
            return response

        return handle


def _checked(kind: type[BaseModel], request: Request) -> dict[str, Any] | None:
    """The path's parts; None if malformed, so that FastAPI words the error."""
    try:
        return vars(kind(**request.path_params))
    except ValidationError:
        return None


def _in_thread(endpoint: Callable[..., Any], mark: Mark) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def run(**values: Any) -> Any:
        ctx, work = _here.get(), functools.partial(endpoint, **values)
        try:
            return await ctx.service.work.run(
                work, dataset=ctx.dataset, caller=ctx.caller, heavy=mark.heavy
            )
        except OSError as error:
            if not ctx.dataset:
                raise
            raise away(ctx.dataset, error) from None

    return run


def make_router(
    prefix: str = "", tag: str = "", refused: dict[int | str, dict[str, Any]] | None = None
) -> APIRouter:
    """A router whose endpoints must have `@scope`, and answer errors as problems."""
    return APIRouter(
        prefix=prefix,
        route_class=ScopedRoute,
        tags=[tag] if tag else None,
        responses=refused or refusals("application/problem+json", "Problem"),
        generate_unique_id_function=lambda route: route.name,
    )


@dataclass(frozen=True, slots=True)
class _Context:
    """An endpoint's context: the request, the service and the caller."""

    request: Request
    service: Service
    principal: Principal

    @property
    def dataset(self) -> str:
        """The dataset in the path, or empty."""
        return str(self.request.path_params.get("name", ""))

    @property
    def caller(self) -> str:
        """The caller to whom work and tickets are attributed: the principal, else the address."""
        has_no_token = self.principal in (LOCAL, ANONYMOUS)
        return address_of(self.request) if has_no_token else self.principal.id


async def _context() -> _Context:  # async: no thread is needed
    return _here.get()


Context = Annotated[_Context, Depends(_context)]
BeforeRow = Annotated[int | None, Query(ge=1, lt=2**31, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000, description="rows of a page, at most")]

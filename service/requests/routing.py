"""Routes that cannot exist without saying who may call them.

Every endpoint carries `@scope(...)`; a route without one fails when the app is
made. The check runs before the body is read.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import json
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from evofeed.errors import EvofeedError
from evofeed.service.access.auth import PUBLIC, SCOPES, Principal
from evofeed.service.problems import Problem
from evofeed.service.requests.admission import admit, caller_of
from evofeed.service.requests.body import strict_json
from evofeed.service.requests.forms import require_own_form
from evofeed.service.requests.idempotency import KEY_PATTERN, run_once
from evofeed.service.snapshots.catalog import away
from evofeed.service.state import Service
from evofeed.service.work import NeedsThread, run_here

_F = TypeVar("_F", bound=Callable[..., Any])


_caller: contextvars.ContextVar[_Caller] = contextvars.ContextVar("evofeed_caller")


@dataclass(frozen=True, slots=True)
class Mark:
    """What `@scope` says of an endpoint."""

    scopes: tuple[str, ...]
    counted: bool
    repeatable: bool
    heavy: bool
    form: bool
    streamed: bool
    patience: float


@dataclass(frozen=True, slots=True)
class _Caller:
    """For whom an endpoint runs, and on which dataset."""

    service: Service
    name: str
    dataset: str


def scope(
    *names: str,
    counted: bool = True,
    repeatable: bool = True,
    heavy: bool = False,
    form: bool = False,
    streamed: bool = False,
    patience: float = 1.0,
) -> Callable[[_F], _F]:
    """Say which scope an endpoint needs.

    Args:
        names: of `SCOPES`, any of which will do; or `PUBLIC` for no token at all.
        counted: False keeps good calls out of the rate limit (shard bytes), and lets them
            go on for a while when the database is away.
        repeatable: False refuses an Idempotency-Key, for answers that must not be kept.
        heavy: it walks an index, so that few of them run at once.
        form: a form of our own pages sends it: a browser's session will do, if the form
            carries the word that only pages of that session know.
        streamed: it takes its body in by itself, piece by piece.
        patience: times the usual time that it may take.
    """
    if not names or not set(names) <= {PUBLIC, *SCOPES}:
        raise ValueError(f"no scopes {names!r}")

    def mark(endpoint: _F) -> _F:
        endpoint.__scope__ = Mark(  # type: ignore[attr-defined]
            names, counted, repeatable and not (form or streamed), heavy, form, streamed, patience
        )
        return endpoint

    return mark


class _StrictRequest(Request):
    """A request whose JSON is what RFC 8259 calls so, in text that every database can keep."""

    async def json(self) -> Any:
        """The body as parsed JSON.

        Raises:
            json.JSONDecodeError: NaN, Infinity, a NUL or half a surrogate pair in a text, or
                no JSON at all.
        """
        if not hasattr(self, "_json"):
            try:
                text = (await self.body()).decode()
            except UnicodeDecodeError as error:
                raise json.JSONDecodeError(f"not UTF-8: {error.reason}", "", 0) from None
            self._json = strict_json(text)
        return self._json


class ScopedRoute(APIRoute):
    """A route that admits, counts and de-duplicates before its endpoint runs in its threads."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        marked: Mark | None = getattr(endpoint, "__scope__", None)
        if marked:
            described = _described(marked, options.get("methods") or ())
            options["openapi_extra"] = (options.get("openapi_extra") or {}) | described
            if not inspect.iscoroutinefunction(endpoint):
                endpoint = _in_thread(endpoint, marked)
        super().__init__(path, endpoint, **options)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler with admission in front."""
        answer = super().get_route_handler()
        marked: Mark | None = getattr(self.endpoint, "__scope__", None)
        if marked is None:
            raise TypeError(f"{self.path} has no @scope: say who may call it")

        async def handle(request: Request) -> Response:
            service: Service = request.app.state.service
            request = _StrictRequest(request.scope, request.receive)
            principal = await admit(
                service, request, marked.scopes, counted=marked.counted, form=marked.form
            )
            request.state.principal = principal
            dataset = str(request.path_params.get("name", ""))
            _caller.set(_Caller(service, caller_of(request, principal), dataset))
            if marked.heavy:
                service.work.require_room(dataset, caller_of(request, principal), heavy=True)
            if request.method in ("POST", "PUT", "PATCH") and not marked.streamed:
                await request.body()  # too large or too slow is said before anything is parsed
            if marked.form:
                await require_own_form(service, request)
            if request.method == "POST" and "idempotency-key" in request.headers:
                if not marked.repeatable:
                    raise _not_kept()
                return await run_once(service.database, principal.id, request, answer)
            return await _counted(answer(request), marked, service, caller_of(request, principal))

        return handle


def mark_of(endpoint: Callable[..., Any]) -> Mark:
    """What `@scope` says of an endpoint."""
    mark: Mark = endpoint.__scope__  # type: ignore[attr-defined]
    return mark


async def run_endpoint(
    run: Callable[[], Response],
    mark: Mark,
    service: Service,
    caller: str,
    dataset: str,
    *,
    here: bool = False,
) -> Response:
    """The answer of an endpoint that was admitted, from its dataset's threads.

    Args:
        run: the endpoint, with all its arguments.
        mark: its own.
        service: whose threads.
        caller: for whom.
        dataset: on which.
        here: it is tried on the event loop first.
    """

    async def answer() -> Response:
        if here:
            with contextlib.suppress(NeedsThread):
                return run_here(run, service.timings.on_loop)
        response: Response = await _in_work(run, mark, service, caller, dataset)
        return response

    return await _counted(answer(), mark, service, caller)


async def _counted(
    answer: Coroutine[Any, Any, Response], mark: Mark, service: Service, caller: str
) -> Response:
    """An answer with the limits it counts against."""
    try:
        response = await answer
    except EvofeedError:
        if not mark.counted:  # bytes are free, guesses at names are not
            service.limiter.spend(caller)
        raise
    if mark.counted and (limits := service.limiter.headers(caller)):
        response.headers.update(limits)
    return response


async def _in_work(
    run: Callable[[], Any], mark: Mark, service: Service, caller: str, dataset: str
) -> Any:
    try:
        seconds = service.work.seconds * mark.patience
        return await service.work.run(
            run, dataset=dataset, caller=caller, heavy=mark.heavy, seconds=seconds
        )
    except OSError as error:
        if not dataset:
            raise
        raise away(dataset, error) from None


def _in_thread(endpoint: Callable[..., Any], marked: Mark) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def run(**values: Any) -> Any:
        caller = _caller.get()
        bound = functools.partial(endpoint, **values)
        return await _in_work(bound, marked, caller.service, caller.name, caller.dataset)

    return run


def _described(marked: Mark, methods: Collection[str]) -> dict[str, Any]:
    """What OpenAPI is to say of a route's mark."""
    if PUBLIC in marked.scopes:
        return {"security": []}
    extra: dict[str, Any] = {"security": [{"token": [name]} for name in marked.scopes]}
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
    return APIRouter(
        prefix=prefix,
        route_class=ScopedRoute,
        tags=[tag] if tag else None,
        generate_unique_id_function=lambda route: route.name,
    )


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

"""The routes that trainers ask all day, answered without the framework around each request.

The same endpoints, admitted by the same marks, as FastAPI serves: only the finding of the
route and the parsing of its parameters are ours. Whatever is not plain (another method, a
parameter that does not fit, a route not listed here) goes to FastAPI, which answers or
refuses it. What is in memory and soon computed is answered on the event loop: a hand-over to a
thread and back costs more. Whatever would wait or take long says so (`NeedsThread`) and is asked
again in its dataset's threads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from evofeed.service.names import DIGEST_PATTERN, NAME_PATTERN, SHARD_PATTERN
from evofeed.service.requests.admission import admit, caller_of
from evofeed.service.requests.ranges import immutable_json
from evofeed.service.requests.routing import mark_of, run_endpoint
from evofeed.service.routes import chains, plans, refs, shards, snapshots
from evofeed.service.state import Service

_NAME: Final = NAME_PATTERN.strip("^$")
_DIGEST: Final = DIGEST_PATTERN.strip("^$")
_SHORT_PAGE: Final = 200  # rows
_SHORT_FILTER: Final = 1000  # letters
_SNAPSHOT: Final = rf"/v1/datasets/(?P<name>{_NAME})/snapshots/(?P<digest>{_DIGEST})"


@dataclass(frozen=True, slots=True)
class _Hot:
    """One route: its path, its endpoint, and the model of its query (None: it takes none)."""

    path: re.Pattern[str]
    endpoint: Callable[..., Response]
    query: type[BaseModel] | None = None
    here: Callable[[Any], bool] = lambda _: False
    """Whether it is worth trying on the event loop, by its query."""
    kept: bool = False
    """It is JSON that depends on its path and query alone."""


def _always(_: Any) -> bool:
    return True


def _short(query: chains.ChainQuery) -> bool:
    """A page that is soon written, for a filter that is soon checked."""
    short = len(query.where or "") <= _SHORT_FILTER and query.limit <= _SHORT_PAGE
    return short and not query.count


_HOT: Final = (
    _Hot(re.compile(_SNAPSHOT), snapshots.get_manifest, here=_always),
    _Hot(
        re.compile(
            rf"/v1/datasets/(?P<name>{_NAME})/shards/(?P<shard>{SHARD_PATTERN.strip('^$')})"
        ),
        shards.get_shard,
        here=_always,
    ),
    _Hot(
        re.compile(rf"/v1/datasets/(?P<name>{_NAME})/refs/(?P<ref>{_NAME})"),
        refs.get_ref,
        here=_always,
    ),
    _Hot(
        re.compile(_SNAPSHOT + r"/chains"), chains.list_chains, chains.ChainQuery, _short, kept=True
    ),
    _Hot(
        re.compile(_SNAPSHOT + r"/chains/(?P<chain_id>[^/]+)"),
        chains.get_chain,
        here=_always,
        kept=True,
    ),
    _Hot(re.compile(_SNAPSHOT + r"/plan"), plans.get_plan, plans.PlanQuery, kept=True),
)


class Direct:
    """`app` with a short way for some of its routes.

    Args:
        app: what serves the other routes.
        owner: the application both are of.
        answer_error: the response to an error that FastAPI would have caught.
    """

    def __init__(
        self,
        app: ASGIApp,
        owner: FastAPI,
        answer_error: Callable[[Request, Exception], Response | None],
    ) -> None:
        self._app, self._owner, self._answer_error = app, owner, answer_error
        self._service: Service = owner.state.service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] == "http" and scope["method"] == "GET":
            path = scope["path"]
            for hot in _HOT if path.startswith("/v1/datasets/") else ():
                found = hot.path.fullmatch(path)
                if found and (values := _parsed(hot, scope)) is not None:
                    await self._serve(hot, found.groupdict() | values, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _serve(
        self, hot: _Hot, values: dict[str, Any], scope: Scope, receive: Receive, send: Send
    ) -> None:
        scope.update({"app": self._owner, "endpoint": hot.endpoint, "path_params": values})
        request = Request(scope, receive)
        try:
            response = await self._answer(hot, request, values)
        except Exception as error:
            answer = self._answer_error(request, error)
            if answer is None:
                raise
            response = answer
        await response(scope, receive, send)

    async def _answer(self, hot: _Hot, request: Request, values: dict[str, Any]) -> Response:
        service, mark = self._service, mark_of(hot.endpoint)
        principal = await admit(service, request, mark.scopes, counted=mark.counted)
        caller, name = caller_of(request, principal), values["name"]
        run = functools.partial(hot.endpoint, request=request, service=service, **values)
        place = service.catalog.places.known(name)
        here = place != "" and hot.here(values.get("query"))
        if not hot.kept or not place:
            return await run_endpoint(run, mark, service, caller, name, here=here)
        # The place is in the key: a name may come to mean another one.
        key = (place, request.scope["path"], request.scope["query_string"])
        if (data := service.answers.find(key)) is not None:
            again = functools.partial(immutable_json, request, data)
            return await run_endpoint(again, mark, service, caller, name, here=True)
        response = await run_endpoint(run, mark, service, caller, name, here=here)
        service.answers.keep(key, request.state.whole)
        return response


def _parsed(hot: _Hot, scope: Scope) -> dict[str, Any] | None:
    """The query's values; None where FastAPI had better say what is wrong with it."""
    text = scope["query_string"]
    if hot.query is None:
        return {}  # what a route does not know is passed over
    values: dict[str, Any] = {}
    try:
        for name, value in parse_qsl(text.decode("ascii"), keep_blank_values=True):
            if name == "method":
                values.setdefault(name, []).append(value)
            elif name in values:
                return None
            else:
                values[name] = value
        return {"query": hot.query.model_validate(values)}
    except (ValidationError, ValueError):
        return None

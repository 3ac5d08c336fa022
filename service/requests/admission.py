"""Whether a request comes in: its token, its scope, its dataset."""

from __future__ import annotations

import logging

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from evofeed.service.access.auth import (
    ANONYMOUS,
    LOCAL,
    PUBLIC,
    Principal,
    presented,
    unauthorized,
)
from evofeed.service.problems import Problem
from evofeed.service.state import Service

_log = logging.getLogger("evofeed.service.access")


async def admit(
    service: Service,
    request: Request,
    scopes: tuple[str, ...],
    *,
    reads_bytes: bool = False,
    form: bool = False,
) -> Principal:
    """Who sends a request, once it is clear that it may.

    Args:
        service: whose request it is.
        request: the request.
        scopes: any of which will do.
        reads_bytes: known tokens will do while the database is away.
        form: a browser's session may send it; whoever calls then checks the form's word.

    Raises:
        Problem: 401 and 403.
    """
    if PUBLIC in scopes:
        return ANONYMOUS
    principal = await _identify(service, request, reads_bytes, form)
    if principal is ANONYMOUS and not principal.scopes & set(scopes):
        raise unauthorized("this needs a token")
    principal.require(*scopes)
    if (name := request.path_params.get("name")) is not None:
        principal.require_dataset(str(name))
    return principal


async def _identify(service: Service, request: Request, reads_bytes: bool, form: bool) -> Principal:
    if service.settings.auth == "off":
        return LOCAL
    token, session = presented(request, form=form)
    if not token and not session and service.settings.auth == "read":
        return ANONYMOUS
    if (known := service.authority.known(token, session)) is not None:
        return known
    try:
        return await run_in_threadpool(
            service.authority.principal, token, session, reads_bytes=reads_bytes
        )
    except Problem as problem:
        if token or session:  # else nobody guessed anything
            _log.warning("refused a token from %s: %s", address_of(request), problem.message)
        raise


def caller_of(request: Request, principal: Principal) -> str:
    """For whom a request's work is counted, and whose its tickets are."""
    return address_of(request) if principal in (LOCAL, ANONYMOUS) else principal.id


def address_of(request: Request) -> str:
    """Where a request comes from."""
    return request.client.host if request.client else "unknown"

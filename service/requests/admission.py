"""Whether a request comes in: its token, its scope, its dataset, its rate."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from evofeed.service.access.audit import record
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


async def admit(
    service: Service,
    request: Request,
    scopes: Collection[str],
    *,
    counted: bool,
    form: bool = False,
) -> Principal:
    """Who sends a request, once it is clear that it may.

    Args:
        service: whose request it is.
        request: the request.
        scopes: any of which will do.
        counted: it counts for the rate limit.
        form: a browser's session may send it; whoever calls then checks the form's word.

    Raises:
        Problem: 401, 403 and 429.
    """
    if PUBLIC in scopes:
        return ANONYMOUS
    reads_bytes = not counted and "read" in scopes
    principal = await _identify(service, request, reads_bytes, form)
    if principal is ANONYMOUS and not principal.scopes & set(scopes):
        raise await refuse(service, request, "this needs a token")
    principal.require(*scopes)
    if (name := request.path_params.get("name")) is not None:
        principal.require_dataset(str(name))
    if counted:
        service.limiter.spend(caller_of(request, principal))
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
        return await run_in_threadpool(service.authority.principal, token, session, reads_bytes)
    except Problem as problem:
        if not token and not session:  # nobody guessed anything
            raise
        raise await refuse(service, request, problem.message) from None


async def refuse(service: Service, request: Request, why: str) -> Problem:
    """The refusal of whoever could not be identified; 429 once there were too many."""
    address = _address(request)
    service.failures.spend(address)  # in memory, before anything is written
    if service.noted.may_spend(address):

        def note() -> None:
            with service.database.write() as session:
                record(session, "?", "auth.fail", address, why=why)

        await run_in_threadpool(note)
    return unauthorized(why)


def caller_of(request: Request, principal: Principal) -> str:
    """Whom a request's rate and work are counted for."""
    return _address(request) if principal in (LOCAL, ANONYMOUS) else principal.id


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"

"""The same POST twice is done once: answers kept by Idempotency-Key for a day."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable

from fastapi import Request
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from evofeed.service.database.database import Database
from evofeed.service.database.tables import IdempotencyRow
from evofeed.service.problems import Problem

_KEPT = 86_400.0  # seconds an answer is kept
_STUCK = 60.0  # seconds after which an unfinished request counts as dead
KEY_PATTERN = r"^[A-Za-z0-9._:-]{1,128}$"


async def run_once(
    database: Database,
    principal: str,
    request: Request,
    answer: Callable[[Request], Awaitable[Response]],
) -> Response:
    """The answer to `request`, or the one given before under the same key.

    A refused request (an exception from `answer`) is not remembered.

    Raises:
        Problem: 422, the key is malformed or was used for another request; 409,
            the first request is still running.
    """
    key = request.headers["idempotency-key"]
    if not re.fullmatch(KEY_PATTERN, key):
        raise _problem(422, "Idempotency-Key takes 1 to 128 letters, digits and . _ : -")
    digest = hashlib.sha256(f"{request.method} {request.url.path}\n".encode())
    digest.update(await request.body())
    try:
        earlier = await run_in_threadpool(_claim, database, principal, key, digest.hexdigest())
    except IntegrityError:  # another request claimed the key between our look and our insert
        raise _running() from None
    if earlier is not None:
        return earlier
    try:
        response = await answer(request)
    except BaseException:
        await run_in_threadpool(_forget, database, principal, key)
        raise
    if response.status_code >= 500:
        await run_in_threadpool(_forget, database, principal, key)
    else:
        await run_in_threadpool(_keep, database, principal, key, response)
    return response


def _claim(database: Database, principal: str, key: str, digest: str) -> Response | None:
    now = time.time()
    with database.write() as session:
        session.execute(delete(IdempotencyRow).where(IdempotencyRow.created_at < now - _KEPT))
        row = session.get(IdempotencyRow, (principal, key), with_for_update=True)
        if row is not None and row.status is None and row.created_at < now - _STUCK:
            session.delete(row)
            session.flush()
            row = None
        if row is None:
            session.add(
                IdempotencyRow(principal=principal, key=key, request_sha256=digest, created_at=now)
            )
            return None
        if row.request_sha256 != digest:
            raise _problem(422, "this Idempotency-Key was used for another request")
        if row.status is None:
            raise _running()
        headers = {"Idempotency-Replayed": "true"}
        headers |= {"Location": row.location} if row.location else {}
        return Response(row.body, row.status, headers, row.media_type)


def _keep(database: Database, principal: str, key: str, response: Response) -> None:
    with database.write() as session:
        if row := session.get(IdempotencyRow, (principal, key)):
            row.status, row.body = response.status_code, bytes(response.body)
            row.media_type = response.headers.get("content-type", "")
            row.location = response.headers.get("location", "")


def _forget(database: Database, principal: str, key: str) -> None:
    with database.write() as session:
        if row := session.get(IdempotencyRow, (principal, key)):
            session.delete(row)


def _running() -> Problem:
    return _problem(409, "the first request with this Idempotency-Key still runs", wait=1)


def _problem(status: int, what: str, wait: int = 0) -> Problem:
    hint = "wait and send it again" if wait else "choose a new key for a new request"
    return Problem(status, "idempotency", what, next=hint, wait=wait)

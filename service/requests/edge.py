"""What every request passes first and every response last.

Request ids, the body cap, the Host check, security headers, counters and one
log line; plain ASGI, so that streaming bodies stay streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evofeed.service.metrics import Metrics
from evofeed.service.problems import Problem, unexpected
from evofeed.service.settings import ServiceSettings

_log = logging.getLogger("evofeed.service.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_UPLOAD = re.compile(r"/v1/datasets/[^/]+/(shards|snapshots)/[^/]+")  # sent by PUT
_PORT = re.compile(r":\d+$")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
}
_READ: Final = (b"host", b"content-length", b"x-request-id")
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]


class Edge:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = frozenset(settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/datasets/"):  # a dataset's URI may leave out /v1
            scope["path"] = f"/v1{scope['path']}"
        said = _said(scope)
        exchange = _Exchange(scope, send, said[b"x-request-id"])
        if scope["method"] == "HEAD":  # whatever answers GET answers HEAD
            scope = {**scope, "method": "GET", "evofeed.head": True}  # the server's own says HEAD
        try:
            if problem := self._refusal(scope, said):
                await problem.response()(scope, receive, exchange.send)
            else:
                await self._app(scope, self._capped(scope, receive), exchange.send)
        except Exception as error:
            problem = (
                error if isinstance(error, Problem) else unexpected(error, exchange.request_id)
            )
            if exchange.status:  # the head is out: only a broken stream can tell now
                raise
            await problem.response()(scope, receive, exchange.send)
        finally:
            self._account(scope, exchange)

    def _refusal(self, scope: Scope, said: dict[bytes, str]) -> Problem | None:
        host = _PORT.sub("", said[b"host"])
        if self._hosts and host not in self._hosts:
            return Problem(
                421,
                "wrong_host",
                f"this service does not answer for host {host[:80]!r}",
                next="use its own address, or add the name to EVOFEED_ALLOWED_HOSTS",
            )
        if not (length := said[b"content-length"]):
            return None
        most = self._most(scope)
        return _too_large(most) if not length.isdecimal() or int(length[:19]) > most else None

    def _most(self, scope: Scope) -> int:
        """Bytes that a body may have."""
        return self._settings.max_upload if _is_upload(scope) else self._settings.max_body

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        seconds = self._settings.request_seconds
        return _capped(receive, self._most(scope), seconds, each_piece=_is_upload(scope))

    def _account(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = time.monotonic() - exchange.began
        endpoint = getattr(scope.get("endpoint"), "__name__", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.request(endpoint, method, exchange.status, seconds, exchange.sent)
        if _log.isEnabledFor(logging.INFO):
            # Path only: a query string may hold a cursor or a signature.
            line = {
                "request_id": exchange.request_id,
                "method": method,
                "path": scope["path"],
                "status": exchange.status,
                "seconds": round(seconds, 6),
                "bytes": exchange.sent,
            }
            _log.info("%s", json.dumps(line))


def _said(scope: Scope) -> dict[bytes, str]:
    """What a request's headers say of what is looked at here, each the first time."""
    said = dict.fromkeys(_READ, "")
    for name, value in reversed(scope["headers"]):
        if name in said:
            said[name] = value.decode("latin-1")
    return said


class _Exchange:
    """What went out for one request."""

    def __init__(self, scope: Scope, send: Send, given: str) -> None:
        self.request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self.began = time.monotonic()
        self.status, self.sent = 0, 0
        self._send, self._head = send, scope["method"] == "HEAD"

    async def send(self, message: Message) -> None:
        """Pass a message on, with our headers on its head."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            there = {name for name, _ in headers}
            headers.append((b"x-request-id", self.request_id.encode()))
            headers += [header for header in _RAW_HEADERS if header[0] not in there]
            message["headers"] = headers
        else:
            if self._head:
                message = {
                    "type": "http.response.body",
                    "more_body": message.get("more_body", False),
                }
            self.sent += len(message.get("body", b""))
        await self._send(message)


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "PUT" and _UPLOAD.fullmatch(scope["path"]) is not None


def _capped(receive: Receive, most: int, seconds: float, *, each_piece: bool) -> Receive:
    """`receive` that refuses a body growing past the cap (it may come without a length) or late.

    With `each_piece`, the time is that between two pieces.
    """
    seen, whole = 0, False
    until = time.monotonic() + seconds

    async def counted() -> Message:
        nonlocal seen, whole, until
        if whole:  # from here on, only whether the client is still there
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                message = await receive()
        except TimeoutError:
            raise _too_slow() from None
        seen += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        until = time.monotonic() + seconds if each_piece else until
        if seen > most:
            raise _too_large(most)
        return message

    return counted


def _too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"a body may have {limit} bytes",
        next="send less, or raise EVOFEED_MAX_BODY (of shards: EVOFEED_MAX_UPLOAD)",
        headers={"Connection": "close"},
    )


def _too_slow() -> Problem:
    return Problem(
        408,
        "body_too_slow",
        "the body did not come in time",
        next="send it again, faster",
        headers={"Connection": "close"},
    )

"""The outermost middleware.

Request ids, the body cap, the Host check, security headers, counters and one log line; plain
ASGI, so that streaming bodies stay streams.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import time
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evofeed.service.metrics import Metrics
from evofeed.service.problems import Problem, as_problem, unexpected
from evofeed.service.settings import ServiceSettings

_log = logging.getLogger("evofeed.service.access")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = re.compile(r":\d+$")
_BODY_SECONDS: Final = 60.0
"""Seconds for receiving a body: one that never comes would keep its connection."""
_CLOSE: Final = {"Connection": "close"}
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy of pages."""
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY.encode()),
)


class Edge:
    """The outermost middleware, inside uvicorn's, which reads proxies' headers."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = frozenset(settings.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = secrets.token_hex(8)
        exchange = _Exchange(send, request_id)
        if scope["method"] == "HEAD":  # every GET route answers HEAD
            # The server's own scope says HEAD, so it sends no body.
            scope = {**scope, "method": "GET", "evofeed.head": True}
        try:
            self._admit(headers)
            await self._app(scope, self._capped(receive), exchange.send)
        except Exception as error:
            if exchange.status:  # the head was sent: only a broken stream can signal an error
                raise
            problem = as_problem(error) or unexpected(error, exchange.request_id)
            await problem.response(scope["path"])(scope, receive, exchange.send)
        finally:
            self._account(scope, exchange)

    def _admit(self, headers: Headers) -> None:
        host = _PORT.sub("", headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            message = f"this service does not answer for host {host[:80]!r}"
            hint = "use its own address, or add the name to EVOFEED_ALLOWED_HOSTS"
            raise Problem(421, "wrong_host", message, next=hint)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:19]) > self._settings.max_body:
            raise self._too_large()

    def _capped(self, receive: Receive) -> Receive:
        """`receive` that refuses a body past the cap (it may have no length) or a late one."""
        received = 0
        end: float | None = asyncio.get_running_loop().time() + _BODY_SECONDS

        async def counted() -> Message:
            nonlocal received, end
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                detail = f"only {received} bytes of a body came within {_BODY_SECONDS:.0f} s"
                raise Problem(408, "body_too_slow", detail, next="send it again",
                              headers=_CLOSE) from None  # fmt: skip
            if not message.get("more_body"):
                end = None  # from now on this waits for a disconnect
            received += len(message.get("body", b""))
            if received > self._settings.max_body:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> Problem:
        message = f"a body may have {self._settings.max_body} bytes"
        hint = "send less, or raise EVOFEED_MAX_BODY"
        return Problem(413, "body_too_large", message, next=hint, headers=_CLOSE)

    def _account(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = time.monotonic() - exchange.began
        endpoint = getattr(scope.get("route"), "name", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.request(endpoint, method, exchange.status, seconds, exchange.sent)
        if _log.isEnabledFor(logging.INFO):
            # Path only: a query string may hold a cursor or a signature.
            line = {
                "request_id": exchange.request_id, "method": method, "path": scope["path"],
                "status": exchange.status, "seconds": round(seconds, 6), "bytes": exchange.sent,
            }  # fmt: skip
            _log.info("%s", json.dumps(line))


class _Exchange:
    """The response sent for one request."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.request_id, self._send = request_id, send
        self.began = time.monotonic()
        self.status, self.sent = 0, 0

    async def send(self, message: Message) -> None:
        """Forward a message; the response's start gets the common headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message["headers"])
            names = {name for name, _ in headers}
            headers.append((b"x-request-id", self.request_id.encode()))
            headers += [header for header in _HEADERS if header[0] not in names]
            message["headers"] = headers
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)

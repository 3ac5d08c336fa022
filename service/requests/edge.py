"""What every request passes first and every response last.

Request ids, the client's address, the body cap, the Host check, security headers, counters
and one log line; plain ASGI, so that streaming bodies stay streams.
"""

from __future__ import annotations

import ipaddress
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
_PORT = re.compile(r":\d+$")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""What pages may load and do."""
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": POLICY,
}
_READ: Final = (
    b"host", b"content-length", b"x-request-id", b"x-forwarded-for", b"x-forwarded-proto",
)  # fmt: skip
_RAW_HEADERS: Final = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]


class Edge:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._hosts = frozenset(settings.hosts)
        self._proxies = [ipaddress.ip_network(proxy) for proxy in settings.trusted_proxies]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].startswith("/datasets/"):  # a dataset's URI may leave out /v1
            scope["path"] = f"/v1{scope['path']}"
        said = _said(scope)
        if self._proxies:
            self._believe(scope, said)
        exchange = _Exchange(scope, send, said[b"x-request-id"])
        if scope["method"] == "HEAD":  # whatever answers GET answers HEAD
            scope = {**scope, "method": "GET", "evofeed.head": True}  # the server's own says HEAD
        try:
            if problem := self._refusal(scope, said):
                await problem.response(scope["path"])(scope, receive, exchange.send)
            else:
                await self._app(scope, _capped(receive, self._settings.max_body), exchange.send)
        except Exception as error:
            problem = (
                error if isinstance(error, Problem) else unexpected(error, exchange.request_id)
            )
            if exchange.status:  # the head is out: only a broken stream can tell now
                raise
            await problem.response(scope["path"])(scope, receive, exchange.send)
        finally:
            self._account(scope, exchange)

    def _refusal(self, scope: Scope, said: dict[bytes, str]) -> Problem | None:
        host = _PORT.sub("", said[b"host"])
        if self._hosts and host not in self._hosts:
            what = f"this service does not answer for host {host[:80]!r}"
            hint = "use its own address, or add the name to EVOFEED_ALLOWED_HOSTS"
            return Problem(421, "wrong_host", what, next=hint)
        most = self._settings.max_body
        if (length := said[b"content-length"]) and (
            not length.isdecimal() or int(length[:19]) > most
        ):
            return _too_large(most)
        return None

    def _believe(self, scope: Scope, said: dict[bytes, str]) -> None:
        """Take the client's address and scheme from a proxy that the operator named."""
        if not self._is_proxy(scope["client"][0] if scope.get("client") else ""):
            return
        for text in reversed(said[b"x-forwarded-for"].split(",")):
            try:
                address = str(ipaddress.ip_address(text.strip()))
            except ValueError:
                break
            scope["client"] = (address, 0)
            if not self._is_proxy(address):
                break
        if said[b"x-forwarded-proto"] in ("http", "https"):
            scope["scheme"] = said[b"x-forwarded-proto"]

    def _is_proxy(self, text: str) -> bool:
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return False
        return any(address in network for network in self._proxies)

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


def _capped(receive: Receive, most: int) -> Receive:
    """`receive` that refuses a body growing past the cap: it may come without a length."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _too_large(most)
        return message

    return counted


def _too_large(limit: int) -> Problem:
    what, hint = f"a body may have {limit} bytes", "send less, or raise EVOFEED_MAX_BODY"
    return Problem(413, "body_too_large", what, next=hint, headers={"Connection": "close"})

"""The server's HTTP: httptools, with limits on a head's time and size, and problem JSON for what
is no HTTP at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from evofeed.service.problems import Problem

_LINGER: Final = 1.0  # seconds
MAX_HEAD: Final = 64 << 10
"""Bytes of a request line and its headers together."""


class _Punctual(HttpToolsProtocol):
    """The protocol of a server whose `PunctualConfig` says how long it waits for a head."""

    late: asyncio.TimerHandle | None = None
    head: int | None = None  # bytes of the head that is coming in; None between heads
    refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        assert isinstance(self.config, PunctualConfig)
        self.seconds = self.config.head_seconds
        self.expect_head()

    def data_received(self, data: bytes) -> None:
        # The parser takes heads of any size, so what it is given is cut.
        for at in range(0, len(data), MAX_HEAD):
            if self.refused or self.transport.is_closing():
                return
            piece = data[at : at + MAX_HEAD] if len(data) > MAX_HEAD else data
            super().data_received(piece)
            if self.head is not None:
                self.head += len(piece)
                if self.head > MAX_HEAD:
                    self.refuse(_too_long())
                    return
        self.expect_head()

    def expect_head(self) -> None:
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self.late is None:
            self.late = self.loop.call_later(self.seconds, self.transport.close)
        elif not waits and self.late is not None:
            self.late.cancel()
            self.late = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.head = 0

    def on_headers_complete(self) -> None:
        self.head = None
        try:
            super().on_headers_complete()
        except httptools.HttpParserInvalidURLError:
            long = len(self.url) > MAX_HEAD - 1024  # the parser counts them in 16 bits
            self.refuse(_too_long() if long else _no_http("the request's path cannot be read"))

    def send_400_response(self, msg: str) -> None:
        self.refuse(_no_http(msg))

    def refuse(self, problem: Problem) -> None:
        """Say what is wrong before any application could, and hang up."""
        if self.refused or self.transport.is_closing():
            return
        self.refused = True
        if self.cycle is None or self.cycle.response_complete:
            body = problem.response().body
            head = (
                f"HTTP/1.1 {problem.status} Refused\r\nContent-Type: application/problem+json"
                f"\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + bytes(body))
        # What is still coming is let go by: to close on it would take the answer away.
        self.loop.call_later(_LINGER, self.transport.close)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.head is not None and not self.pipeline:  # part of the next is here already
            self.expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.late is not None:
            self.late.cancel()

    def shutdown(self) -> None:
        """The server stops: streams that wait for news end."""
        self.app_state["service"].stopping.set()
        super().shutdown()


class PunctualConfig(uvicorn.Config):
    """How uvicorn runs an application of ours.

    Args:
        app: the application, or what makes it.
        seconds: that the head of a request may take.
        more: as of `uvicorn.Config`.
    """

    def __init__(self, app: Any, seconds: float, **more: Any) -> None:
        self.head_seconds = seconds
        super().__init__(
            app,
            http=_Punctual,
            access_log=False,  # it would log query strings; `Edge` writes the access lines
            log_config=None,
            server_header=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=5,
            ws="none",
            **more,
        )
        logging.getLogger("uvicorn.access").disabled = True


def _too_long() -> Problem:
    return Problem(
        431,
        "head_too_long",
        f"a request's line and headers may have {MAX_HEAD} bytes together",
        next="send long filters in a body: POST .../chains/search",
    )


def _no_http(what: str) -> Problem:
    return Problem(400, "bad_http", what, next="send HTTP/1.1 as RFC 9112 has it")

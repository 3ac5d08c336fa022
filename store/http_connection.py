"""Requests to one service: kept-alive connections, a bearer token, and retries.

Transient failures (connection lost, 429, 5xx) are retried with growing, jittered waits.
"""

from __future__ import annotations

import http.client
import io
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, Final
from urllib.parse import urlsplit

from evofeed.base.errors import StoreError
from evofeed.base.files import parse_json

ATTEMPTS: Final = 6
FIRST_WAIT: Final = 0.1
TIMEOUT: Final = 30.0
"""Seconds without a byte after which a connection counts as lost."""
MIN_RATE: Final = 1024.0
"""Bytes a second below which an answer counts as lost, after its first `TIMEOUT` seconds."""
MAX_WAIT: Final = 60.0
MAX_ERROR_NBYTES: Final = 64 << 10
"""Bytes of an error's body that are read, even if the request was for a shorter range."""
MAX_NBYTES: Final = 4 << 30
"""Bytes of the largest file that is read in full."""
Body = bytes | memoryview
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
TRANSIENT: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's answer to a request."""

    status: int
    headers: Message
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds to wait before the next request."""
        try:
            return float(self.headers.get("Retry-After") or 0)
        except ValueError:  # an HTTP date: the client's own waits are used
            return 0.0

    @property
    def problem(self) -> dict[str, Any]:
        """Members of the problem JSON of an error; empty if the body is anything else."""
        try:
            values = parse_json(self.body)
        except ValueError:  # an HTML page of a proxy
            return {}
        return values if isinstance(values, dict) else {}


class _RateLimit(io.RawIOBase):
    """Bytes of a socket, at `MIN_RATE` or more: the timeout of the socket restarts at each byte."""

    def __init__(self, received: io.RawIOBase) -> None:
        self._received, self._began, self._size = received, time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size = self._received.readinto(buffer)
        self._size += size or 0
        seconds = time.monotonic() - self._began
        if seconds > TIMEOUT + self._size / MIN_RATE:
            raise TimeoutError(f"only {self._size} bytes in {seconds:.0f} s")
        return size

    def close(self) -> None:
        self._received.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp = io.BufferedReader(_RateLimit(self.fp.detach()))


class _OpenConnection:
    """A connection that is closed when its thread or its `HttpConnection` ends."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        connection.response_class = _Response
        weakref.finalize(self, connection.close)


class HttpConnection:
    """One kept-alive connection per thread and process.

    Args:
        url: of the service or of a resource of it; only its host is used.
        token: bearer token of every request. If None, the value of the variable
            `EVOFEED_TOKEN` at each request: it may be renewed there.
        first_wait: seconds before the second attempt; doubles each time, up to 5 s, times 0.5
            to 1.5.
    """

    def __init__(self, url: str, token: str | None = None, first_wait: float = FIRST_WAIT) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:  # a port that is not a number, an unclosed bracket
            raise ValueError(f"{url}: {error}; write http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ValueError(f"{url}: no host in this address, as in http://HOST:PORT")
        self.secure = parts.scheme == "https"
        self._url, self._token, self._first_wait = url, token, first_wait
        self._local = threading.local()
        self._open: weakref.WeakSet[_OpenConnection] = weakref.WeakSet()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        attempts: int = ATTEMPTS,
    ) -> Answer:
        """The answer to a request, retried after transient failures.

        A request that is not safe to send twice needs an Idempotency-Key. There is no retry when
        the service asks for a wait of more than a minute.

        Raises:
            StoreError: no answer, or transient failures only.
        """
        why = ""
        for attempt in range(attempts):
            wait = 0.0
            try:
                answer = self._once(method, path, dict(headers or {}), body)
            except (OSError, http.client.HTTPException) as error:
                self.connection().close()
                why = f"{type(error).__name__}: {error}"
            else:
                if answer.status not in TRANSIENT:
                    return answer
                detail = str(answer.problem.get("detail", ""))
                why = f"HTTP {answer.status}{': ' if detail else ''}{detail}"
                wait = answer.retry_after
            if wait > MAX_WAIT:  # such as a daily quota: an error now is better than a silent wait
                break
            if attempt + 1 < attempts:
                backoff = min(self._first_wait * 2**attempt, 5.0) * random.uniform(0.5, 1.5)
                time.sleep(max(backoff, wait))
        raise StoreError(
            f"gave up after {attempt + 1} attempts ({why}): is the service up?", path=self._url
        )

    def connection(self) -> http.client.HTTPConnection:
        """The connection of this thread."""
        if getattr(self._local, "pid", None) != os.getpid():  # a socket does not survive a fork
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            self._local.open = _OpenConnection(kind(self._host, self._port, timeout=TIMEOUT))
            self._open.add(self._local.open)
            self._local.pid = os.getpid()
        connection: http.client.HTTPConnection = self._local.open.connection
        return connection

    def close(self) -> None:
        """Close the connections of all threads; a request opens them again."""
        for opened in list(self._open):
            opened.connection.close()

    def _once(self, method: str, path: str, headers: dict[str, str], body: Body | None) -> Answer:
        token = (self._token or os.environ.get("EVOFEED_TOKEN", "")).strip()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = self.connection()
        connection.request(method, path, body, {"Accept-Encoding": "identity", **headers})
        response = connection.getresponse()
        span = _RANGE.fullmatch(headers.get("Range", ""))
        limit = max(int(span[2]) - int(span[1]) + 1, MAX_ERROR_NBYTES) if span else MAX_NBYTES
        if span and response.status == 200:
            connection.close()
            why = "it sends a full file instead of a range: does a proxy remove the header `Range`?"
            raise StoreError(why, path=self._url)
        size, data = response.length, bytearray()
        if size is not None and size <= limit:
            return Answer(response.status, response.headers, response.read())
        while size is None and len(data) <= limit and (piece := response.read(1 << 20)):
            data += piece
        if size is not None or len(data) > limit:
            connection.close()
            raise StoreError(f"it sends more than {limit} bytes: hung up", path=self._url)
        return Answer(response.status, response.headers, bytes(data))

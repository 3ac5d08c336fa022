"""Requests to one service: kept-alive connections, a token, and patience with what passes.

What may pass by itself (connection lost, 429, 5xx) is tried again with growing, jittered waits.
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
SLOWEST: Final = 1024.0
"""Bytes a second that an answer must keep to, after its first `TIMEOUT`: what drips is lost too."""
MAX_WAIT: Final = 60.0
REFUSAL: Final = 64 << 10
"""Bytes of a refusal that are read, however few a range asked for."""
WHOLE: Final = 4 << 30
"""Bytes of a file that is read whole."""
Body = bytes | memoryview
_RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """What a service said."""

    status: int
    headers: Message
    body: bytes

    @property
    def retry_after(self) -> float:
        """Seconds it wants to be left alone for."""
        try:
            return float(self.headers.get("Retry-After") or 0)
        except ValueError:  # an HTTP date: our own waits will do
            return 0.0

    @property
    def problem(self) -> dict[str, Any]:
        """What a refusal says of itself, if it is problem JSON; else nothing."""
        try:
            values = parse_json(self.body)
        except ValueError:  # a proxy's own page
            return {}
        return values if isinstance(values, dict) else {}


class _Paced(io.RawIOBase):
    """What a socket receives, while it keeps to `SLOWEST`: its own timeout begins at each byte."""

    def __init__(self, received: io.RawIOBase) -> None:
        self._received, self._began, self._size = received, time.monotonic(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size = self._received.readinto(buffer)
        self._size += size or 0
        seconds = time.monotonic() - self._began
        if seconds > TIMEOUT + self._size / SLOWEST:
            raise TimeoutError(f"only {self._size} bytes in {seconds:.0f} s")
        return size

    def close(self) -> None:
        self._received.close()
        super().close()


class _PacedResponse(http.client.HTTPResponse):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp = io.BufferedReader(_Paced(self.fp.detach()))


class _Kept:
    """A connection that closes itself when its thread or owner goes."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        connection.response_class = _PacedResponse
        weakref.finalize(self, connection.close)


class HttpConnection:
    """One kept-alive connection per thread and process.

    Args:
        url: of the service or of something below it; only its host counts here.
        token: goes as a bearer token with every request. Without one, that of the variable
            `EVOFEED_TOKEN` goes, as it is at that moment: it may be renewed there.
        first_wait: seconds before the second attempt; doubles each time, up to 5 s, times 0.5
            to 1.5.
    """

    def __init__(self, url: str, token: str | None = None, first_wait: float = FIRST_WAIT) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:  # a port that is no number, a bracket without its other one
            raise ValueError(f"{url}: {error}; write http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not self._host:
            raise ValueError(f"{url}: no host in this address, as in http://HOST:PORT")
        self.secure = parts.scheme == "https"
        self._url, self._token, self._first_wait = url, token, first_wait
        self._local = threading.local()
        self._open: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        attempts: int = ATTEMPTS,
    ) -> Answer:
        """The answer to a request, tried again while what is wrong may pass.

        What is not safe to send twice needs an Idempotency-Key. A service that wants to be left
        alone for more than a minute is not asked again.

        Raises:
            StoreError: it never answered, or only with what should have passed.
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
                if answer.status not in PASSING:
                    return answer
                said = str(answer.problem.get("detail", ""))
                why, wait = f"HTTP {answer.status}{': ' if said else ''}{said}", answer.retry_after
            if wait > MAX_WAIT:  # a quota of a day: whoever waits for us had better know
                break
            if attempt + 1 < attempts:
                own = min(self._first_wait * 2**attempt, 5.0) * random.uniform(0.5, 1.5)
                time.sleep(max(own, wait))
        raise StoreError(
            f"gave up after {attempt + 1} attempts ({why}): is the service up?", path=self._url
        )

    def connection(self) -> http.client.HTTPConnection:
        """This thread's own."""
        if getattr(self._local, "pid", None) != os.getpid():  # a socket does not survive a fork
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            self._local.kept = _Kept(kind(self._host, self._port, timeout=TIMEOUT))
            self._open.add(self._local.kept)
            self._local.pid = os.getpid()
        kept: _Kept = self._local.kept
        return kept.connection

    def close(self) -> None:
        """Close the connections of all threads; a request opens them again."""
        for kept in list(self._open):
            kept.connection.close()

    def _once(self, method: str, path: str, headers: dict[str, str], body: Body | None) -> Answer:
        token = (self._token or os.environ.get("EVOFEED_TOKEN", "")).strip()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = self.connection()
        connection.request(method, path, body, {"Accept-Encoding": "identity", **headers})
        response = connection.getresponse()
        span = _RANGE.fullmatch(headers.get("Range", ""))
        most = max(int(span[2]) - int(span[1]) + 1, REFUSAL) if span else WHOLE
        if span and response.status == 200:
            connection.close()
            what = "it sends all of a file for a range of it: does a proxy take `Range` away?"
            raise StoreError(what, path=self._url)
        size, data = response.length, bytearray()
        if size is not None and size <= most:
            return Answer(response.status, response.headers, response.read())
        while size is None and len(data) <= most and (piece := response.read(1 << 20)):
            data += piece
        if size is not None or len(data) > most:
            connection.close()
            raise StoreError(f"it sends more than {most} bytes: hung up", path=self._url)
        return Answer(response.status, response.headers, bytes(data))

"""A dataset behind the manifest service, read over plain HTTP with ranges.

    refs/main                          GET base/refs/main
    snapshots/<digest>/manifest.json   GET base/snapshots/<digest>
    snapshots/<digest>/index.arrow     GET base/snapshots/<digest>/index, others likewise
    shards/<name>                      GET base/shards/<name>, Range

One kept-alive connection per thread and process. What may pass by itself
(connection lost, 429, 5xx) is tried again with growing, jittered waits;
what arrives is checked by the caller against manifest and index.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote, urlsplit

from evofeed.errors import AccessDenied, ShardMissing, StoreError
from evofeed.store.storage import Bytes, ReadOnlyStorage, StoredObject

ATTEMPTS: Final = 6
FIRST_WAIT: Final = 0.1
"""Seconds before the second attempt; doubles each time, up to 5 s, times 0.5 to 1.5."""
TIMEOUT: Final = 30.0
PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})


class _Kept:
    """A connection that closes itself when its thread or storage goes."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        weakref.finalize(self, connection.close)


class HttpStorage:
    """Read-only storage over HTTP(S). `token` goes as a bearer token with every request.

    Without one, that of the variable `EVOFEED_TOKEN` goes, as it is at that moment: it may be
    renewed there, and is in no pickle.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._uri = url.rstrip("/")
        parts = urlsplit(self._uri)
        if not parts.hostname:
            raise ValueError(f"{url}: no host in this address")
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        versioned = parts.path.startswith("/v1/")
        self._base = parts.path if versioned else f"/v1{parts.path}"
        self._token = token
        self._local = threading.local()
        self._open: weakref.WeakSet[_Kept] = weakref.WeakSet()

    @property
    def uri(self) -> str:
        """The dataset's address, as given."""
        return self._uri

    def __reduce__(self) -> tuple[type[HttpStorage], tuple[str, str | None]]:
        return HttpStorage, (self._uri, self._token)

    def read(self, key: str) -> bytes:
        """All bytes of a file."""
        return self._get(key, {})

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out` by one ranged GET."""
        if not len(out):
            return
        span = f"bytes={offset}-{offset + len(out) - 1}"
        data = self._get(key, {"Range": span})
        if len(data) != len(out):
            raise StoreError(
                f"asked for {span}, got {len(data)} bytes: truncated", path=self._url(key)
            )
        out[:] = data

    def _url(self, key: str) -> str:
        return f"{self._uri}/{key}"

    def _path(self, key: str) -> str:
        key = key.removesuffix("/manifest.json")
        if key.startswith("snapshots/"):
            key = key.replace("/index.arrow", "/index")
        return f"{self._base}/{quote(key)}"

    def _get(self, key: str, headers: dict[str, str]) -> bytes:
        why = ""
        for attempt in range(ATTEMPTS):
            try:
                status, retry_after, body = self._once(self._path(key), headers)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                why, retry_after = f"{type(error).__name__}: {error}", 0.0
            else:
                if status not in PASSING:
                    return self._body(key, status, body, ranged="Range" in headers)
                why = f"HTTP {status}"
            if attempt + 1 < ATTEMPTS:
                wait = min(FIRST_WAIT * 2**attempt, 5.0) * random.uniform(0.5, 1.5)
                time.sleep(max(wait, retry_after))
        raise StoreError(
            f"gave up after {ATTEMPTS} attempts ({why}): is the service up?", path=self._url(key)
        )

    def _body(self, key: str, status: int, body: bytes, *, ranged: bool) -> bytes:
        if status == (206 if ranged else 200):
            return body
        if status == 404:
            raise ShardMissing("the service has no such file", path=self._url(key))
        if status in (401, 403):
            raise AccessDenied(
                f"HTTP {status}{_detail(body)}: put a token that may read this dataset into "
                "EVOFEED_TOKEN, or give it to Dataset.open(token=...)",
                path=self._url(key),
            )
        if status == 416:
            raise StoreError("range beyond the end of the file: truncated", path=self._url(key))
        raise StoreError(f"unexpected HTTP {status}", path=self._url(key))

    def _once(self, path: str, headers: dict[str, str]) -> tuple[int, float, bytes]:
        if token := (self._token or os.environ.get("EVOFEED_TOKEN", "")).strip():
            headers = {**headers, "Authorization": f"Bearer {token}"}
        connection = self._connection()
        connection.request("GET", path, headers={"Accept-Encoding": "identity", **headers})
        response = connection.getresponse()
        body = response.read()
        try:
            retry_after = min(float(response.headers.get("Retry-After") or 0), 60.0)
        except ValueError:  # an HTTP date: our own waits will do
            retry_after = 0.0
        return response.status, retry_after, body

    def _connection(self) -> http.client.HTTPConnection:
        if getattr(self._local, "pid", None) != os.getpid():  # a socket does not survive a fork
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._local.kept = _Kept(kind(self._host, self._port, timeout=TIMEOUT))
            self._open.add(self._local.kept)
            self._local.pid = os.getpid()
        kept: _Kept = self._local.kept
        return kept.connection

    def _drop(self) -> None:
        self._connection().close()

    def close(self) -> None:
        """Close the connections of all threads; reading on opens them again."""
        for kept in list(self._open):
            kept.connection.close()

    def __enter__(self) -> HttpStorage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, key: str, data: Bytes) -> None:
        """Refused: publish to the folder or bucket behind the service."""
        raise self._read_only()

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Refused."""
        raise self._read_only()

    def files(self, prefix: str) -> Iterator[StoredObject]:
        """Refused: the service lists snapshots, not files."""
        raise self._read_only()

    def delete(self, key: str) -> None:
        """Refused."""
        raise self._read_only()

    def _read_only(self) -> ReadOnlyStorage:
        return ReadOnlyStorage(
            "a dataset over HTTP is read-only: use the folder or bucket behind the service",
            path=self._uri,
        )


def _detail(body: bytes) -> str:
    """What a refusal says was wrong, if it is problem JSON."""
    try:
        return f" ({' '.join(json.loads(body)['detail'].split())[:200]})"
    except (ValueError, TypeError, KeyError, AttributeError):  # a proxy's own page
        return ""

"""A dataset of an evofeed service, read over plain HTTP with ranges.

    refs/main                          GET base/refs/main
    snapshots/<digest>/manifest.json   GET base/snapshots/<digest>
    snapshots/<digest>/index.arrow     GET base/snapshots/<digest>/index, others likewise
    shards/<name>                      GET base/shards/<name>, Range

The caller checks the bytes against manifest and index.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

from evofeed.base.errors import AccessDenied, ShardMissing, StoreError
from evofeed.store.http_connection import FIRST_WAIT, Answer, HttpConnection
from evofeed.store.storage import ReadOnlyStorage


class HttpStorage:
    """Read-only storage over HTTP(S), with `token` as the bearer token of every request.

    If it is None: the value of the variable `EVOFEED_TOKEN` at each request, so it may be renewed
    there and is not in pickles.
    """

    def __init__(self, url: str, token: str | None = None, first_wait: float = FIRST_WAIT) -> None:
        self._uri, self._token = url.rstrip("/"), token
        self._http = HttpConnection(self._uri, token, first_wait=first_wait)
        path = urlsplit(self._uri).path
        self._base = path if path.startswith("/v1/") else f"/v1{path}"

    @property
    def uri(self) -> str:
        """The dataset's address, as given."""
        return self._uri

    def __reduce__(self) -> tuple[Any, ...]:
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
        try:
            answer = self._http.request("GET", self._path(key), headers)
        except StoreError as error:
            raise StoreError(error.message, path=self._url(key)) from None
        status = answer.status
        if status == (206 if "Range" in headers else 200):
            return answer.body
        if status == 404:
            raise ShardMissing("the service has no such file", path=self._url(key))
        if status in (401, 403):
            raise AccessDenied(
                f"HTTP {status}{_detail(answer)}: put a token that may read this dataset into "
                "EVOFEED_TOKEN, or give it to Dataset.open(token=...)",
                path=self._url(key),
            )
        if status == 416:
            raise StoreError("range beyond the end of the file: truncated", path=self._url(key))
        raise StoreError(f"unexpected HTTP {status}", path=self._url(key))

    def close(self) -> None:
        """Close the connections of all threads; the next read opens them again."""
        self._http.close()

    def _refused(self, *_: Any, **__: Any) -> Any:
        raise ReadOnlyStorage(
            "a dataset over HTTP is read-only: use the folder or bucket behind the service",
            path=self._uri,
        )

    put = swap = files = delete = _refused  # the service lists snapshots, not files


def _detail(answer: Answer) -> str:
    """The detail of an error's problem JSON, if it has one."""
    detail = answer.problem.get("detail")
    return f" ({' '.join(detail.split())[:200]})" if isinstance(detail, str) else ""

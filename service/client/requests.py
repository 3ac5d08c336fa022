"""How the service's client asks: what may pass by itself is tried again, refusals are errors."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from evofeed.base.errors import AccessDenied, RefConflict, ServiceError
from evofeed.store.inner import Answer, HttpConnection

_T = TypeVar("_T")


class Requests:
    """Requests to the service at `url`; safe to use from many threads.

    Args:
        url: such as `http://host:8461`.
        token: goes with every request; None: what `EVOFEED_TOKEN` holds at that moment.

    Raises:
        ServiceError: the URL is none.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._token = url.rstrip("/"), token
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ServiceError(f"{url!r} is not a service's address: write http://HOST:PORT")
        self._base = parts.path.removesuffix("/v1")
        self._http = HttpConnection(self.url, token)

    def close(self) -> None:
        """Close the connections; a request opens them again."""
        self._http.close()

    def _get(self, path: str, **query: Any) -> Any:
        return json.loads(self._bytes(path, **query))

    def _bytes(self, path: str, **query: Any) -> bytes:
        given = {name: _as_text(value) for name, value in query.items() if value is not None}
        text = urlencode(given, doseq=True)
        where = f"{self._base}{path}" + (f"?{text}" if text else "")
        return self._checked(self._http.request("GET", where)).body

    def _paged(self, path: str, name: str, after: str, **query: Any) -> Iterator[dict[str, Any]]:
        while True:
            said = self._get(path, **query)
            yield from said[name]
            if said.get("next") is None:
                return
            query[after] = said["next"]

    def _send(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> Any:
        """What the service answers; a request that is to be sent `once` is not tried again."""
        sent = dict(headers or {}) | ({"Content-Type": "application/json"} if body else {})
        data = json.dumps(body).encode() if body is not None else None
        more: Any = {"attempts": 1} if once else {}
        answer = self._http.request(method, f"{self._base}{path}", sent, data, **more)
        text = self._checked(answer).body
        return json.loads(text) if text else None

    def _checked(self, answer: Answer) -> Answer:
        if 200 <= answer.status < 300:
            return answer
        said = answer.problem
        what = f"{said.get('detail', f'HTTP {answer.status}')}"
        if said.get("next"):
            what += f"; {said['next']}"
        if answer.status in (401, 403):
            raise AccessDenied(what, path=self.url)
        if answer.status == 412:
            raise RefConflict(what, path=self.url)
        raise ServiceError(what, path=self.url)


def made(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """What the service said, without what this client does not know yet."""
    names = {one.name for one in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names})


def part(text: str) -> str:
    """Text as one part of a path."""
    return quote(text, safe="")


def _as_text(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value

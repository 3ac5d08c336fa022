"""How the service's client asks: what may pass by itself is tried again, refusals are errors."""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from evofeed.errors import AccessDenied, RefConflict, ServiceError
from evofeed.store.inner import Answer, HttpConnection

_T = TypeVar("_T")
_COMMIT_SECONDS: Final = 900.0


class Requests:
    """Requests to the service at `url`; safe to use from many threads.

    Args:
        url: such as `http://host:8461`.
        token: goes with every request; None: what `EVOFEED_TOKEN` holds at that moment.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url, self._token = url.rstrip("/"), token
        self._base = urlsplit(self.url).path.removesuffix("/v1")
        self._http = HttpConnection(self.url, token)
        self._patient = HttpConnection(self.url, token, timeout=_COMMIT_SECONDS)

    def close(self) -> None:
        """Close the connections; a request opens them again."""
        self._http.close()
        self._patient.close()

    def _get(self, path: str, **query: Any) -> Any:
        text = urlencode({k: v for k, v in query.items() if v is not None}, doseq=True)
        where = f"{self._base}{path}" + (f"?{text}" if text else "")
        return json.loads(self._checked(self._http.request("GET", where)).body)

    def _paged(self, path: str, name: str, after: str) -> Iterator[dict[str, Any]]:
        cursor = None
        while True:
            said = self._get(path, **{after: cursor})
            yield from said[name]
            cursor = said.get("next")
            if cursor is None:
                return

    def _send(
        self,
        method: str,
        path: str,
        body: object,
        headers: Mapping[str, str] | None = None,
        *,
        repeatable: bool = True,
        patient: bool = False,
    ) -> Any:
        sent = dict(headers or {}) | ({"Content-Type": "application/json"} if body else {})
        once = method == "POST" and not repeatable
        if method == "POST" and repeatable:
            sent["Idempotency-Key"] = uuid.uuid4().hex
        data = json.dumps(body).encode() if body is not None else None
        makes_secret = once and not path.endswith("/search")
        connection = self._patient if patient else self._http
        ask = functools.partial(connection.request, method, f"{self._base}{path}", sent, data)
        answer = ask(attempts=1) if makes_secret else ask()
        text = self._checked(answer).body
        return json.loads(text) if text else None

    def _put(self, path: str, data: bytes | memoryview) -> bytes:
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._patient.request("PUT", f"{self._base}{path}", headers, data)
        return self._checked(answer).body

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

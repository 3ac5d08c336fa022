"""Links to shards: what a service lets us read without asking it each time.

A service may give presigned URLs of shards, of its bucket or of the nginx in front of it. They are
asked for in batches, kept until shortly before they end, and asked for again. Whatever goes wrong
with one, the shard is read from the service itself.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from evofeed.base.errors import StoreError
from evofeed.store.http_connection import Answer, HttpConnection

BATCH: Final = 500
"""Shards that links are asked for at once."""
PAUSE: Final = 60.0
"""Seconds without links, after none could be had or some led nowhere."""
_FAULTS: Final = 3  # in a row, after which all links are thought bad and not that one
_USED: Final = (0.6, 0.8)  # of a link's time: readers that began together need not ask together
_ATTEMPTS: Final = 2  # a kept connection may have been closed meanwhile
_MAX_WAIT: Final = 1.0  # seconds: the service has the shard, too
_PORTS: Final = {"http": 80, "https": 443}
_log = logging.getLogger(__name__)


class _Link(NamedTuple):
    """Where a shard is: by which connection, under which path, until when; "" for nowhere."""

    connection: HttpConnection
    path: str
    until: float


class Links:
    """Links to the shards of one dataset, asked for when they are first wanted.

    They are followed to the service's own host, and to the origins that the variable
    `EVOFEED_LINK_ORIGINS` names, such as `https://bucket.s3.eu-west-1.amazonaws.com,...`; no token
    goes along.
    """

    def __init__(
        self, service: HttpConnection, url: str, path: str, clock: Callable[[], float]
    ) -> None:
        self.shards: tuple[str, ...] = ()
        self._service, self._url, self._path, self._clock = service, url, path, clock
        self._number: dict[str, int] = {}
        self._known: dict[str, _Link] = {}
        self._others: dict[str, HttpConnection] = {}
        self._asking = threading.Lock()
        self._not_before, self._faults, self._warned = 0.0, 0, False
        self.stats = dict.fromkeys(("asked", "followed", "failed"), 0)

    def expect(self, shards: Iterable[str]) -> None:
        """Shards of these names may be read."""
        self.shards = tuple(dict.fromkeys((*self.shards, *shards)))
        self._number = {shard: number for number, shard in enumerate(self.shards)}

    def get(self, shard: str, headers: dict[str, str]) -> Answer | None:
        """What the link to a shard leads to; None: read it from the service."""
        if (link := self._find(shard)) is None:
            return None
        try:
            answer = link.connection.request(
                "GET",
                link.path,
                headers,
                attempts=_ATTEMPTS,
                max_wait=_MAX_WAIT,
                with_token=False,
            )
            if answer.status == (206 if "Range" in headers else 200):
                self.stats["followed"] += 1
                self._faults = 0
                return answer
            why = f"HTTP {answer.status}"
        except StoreError as error:
            why = error.message
        self.stats["failed"] += 1
        self._faults += 1
        self.forget(shard)
        if self._faults >= _FAULTS:
            if not self._warned:
                _log.warning("%s: links to shards lead nowhere: %s", self._url, why)
            self._warned = True
            self._stop(PAUSE)
        return None

    def forget(self, shard: str) -> None:
        """Read a shard from the service for a while."""
        if shard in self._known:
            self._known[shard] = _Link(self._service, "", self._clock() + PAUSE)

    def close(self) -> None:
        """Close the connections to other hosts; following links opens them again."""
        for connection in list(self._others.values()):
            connection.close()

    def _find(self, shard: str) -> _Link | None:
        link, now = self._known.get(shard), self._clock()
        if link is not None and now < link.until:
            return link if link.path else None
        if shard not in self._number or now < self._not_before:
            return None
        if not self._asking.acquire(blocking=False):
            return None  # another thread asks: ours need not wait for that
        try:
            self._ask(self._number[shard] // BATCH * BATCH)
        finally:
            self._asking.release()
        link = self._known.get(shard)
        return link if link and link.path else None

    def _ask(self, first: int) -> None:
        """Have the links of a batch."""
        self.stats["asked"] += 1
        asked = self.shards[first : first + BATCH]
        body = json.dumps({"shards": asked}).encode()
        headers, begun = {"Content-Type": "application/json"}, self._clock()
        try:
            answer = self._service.request(
                "POST", self._path, headers, body, attempts=_ATTEMPTS, max_wait=_MAX_WAIT
            )
            if answer.status != 200:
                raise StoreError(f"HTTP {answer.status}")
            values = json.loads(answer.body)
            if values["expires_at"] is None:  # the service's own URLs: nothing is gained by them
                return self._stop(float("inf"))
            if (seconds := _seconds(values["expires_at"], answer)) <= 0:
                raise StoreError(f"they ended at {values['expires_at']}")
            nowhere = _Link(self._service, "", begun + seconds * random.uniform(*_USED))
            found = {item["shard"]: self._way(item["url"]) for item in values["urls"]}
            for shard in asked:
                connection, path = found.get(shard, nowhere[:2])
                self._known[shard] = _Link(connection, path, nowhere.until)
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.info("%s: no links to shards: %s", self._url, error)
            self._stop(PAUSE)

    def _way(self, url: str) -> tuple[HttpConnection, str]:
        """The connection and path of a URL; no path where we may not go there."""
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}"
        if not url.isascii() or not parts.path.startswith("/"):
            return self._service, ""
        if _host(url) == _host(self._url):  # whose scheme is ours, whatever a proxy made of it
            return self._service, path
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in os.environ.get("EVOFEED_LINK_ORIGINS", "").split(","):
            _log.info("links lead to %s, which EVOFEED_LINK_ORIGINS does not name", origin)
            return self._service, ""
        if origin not in self._others:
            self._others[origin] = HttpConnection(origin)
        return self._others[origin], path

    def _stop(self, seconds: float) -> None:
        """Read through the service for a while."""
        self._known.clear()
        self._not_before, self._faults = self._clock() + seconds, 0


def _host(url: str) -> tuple[str | None, int | None]:
    """Host and port of a URL; no port where it is its scheme's own."""
    parts = urlsplit(url)
    return parts.hostname, None if parts.port == _PORTS.get(parts.scheme) else parts.port


def _seconds(expires_at: str, answer: Answer) -> float:
    """How long links are good for, by the service's clock; ours may be another."""
    date = answer.headers.get("Date")
    now = parsedate_to_datetime(date) if date else datetime.datetime.now(datetime.UTC)
    return (datetime.datetime.fromisoformat(expires_at) - now).total_seconds()

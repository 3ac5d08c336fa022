"""Links to shards: presigned URLs of a service's bucket, which let us read without asking it.

They are asked for in batches and kept until shortly before they end. Whatever goes wrong with one,
the shard is read from the service itself, and no link is followed for a while.
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
from typing import Final
from urllib.parse import urlsplit

from evofeed.base.errors import StoreError
from evofeed.store.http_connection import Answer, HttpConnection

BATCH: Final = 500
"""Shards that links are asked for at once."""
PAUSE: Final = 60.0
"""Seconds without links, after none could be had or one led nowhere."""
_USED: Final = (0.6, 0.8)  # of a link's time: readers that began together need not ask together
_ATTEMPTS: Final = 2  # a kept connection may have been closed meanwhile
_MAX_WAIT: Final = 1.0  # seconds: the service has the shard, too
_log = logging.getLogger(__name__)


class Links:
    """Links to the shards of one dataset, asked for when they are first wanted.

    They are followed to the origins that the variable `EVOFEED_LINK_ORIGINS` names, such as
    `https://bucket.s3.eu-west-1.amazonaws.com,...`; no token goes along.
    """

    def __init__(self, service: HttpConnection, path: str, clock: Callable[[], float]) -> None:
        self.shards: tuple[str, ...] = ()
        self._service, self._path, self._clock = service, path, clock
        self._links: dict[str, tuple[str, float]] = {}  # URL and when it ends
        self._origins: dict[str, HttpConnection] = {}
        self._asking = threading.Lock()
        self._not_before = 0.0

    def expect(self, shards: Iterable[str]) -> None:
        """Shards of these names may be read."""
        self.shards = tuple(dict.fromkeys((*self.shards, *shards)))

    def get(self, shard: str, headers: dict[str, str]) -> Answer | None:
        """What the link to a shard leads to; None: read it from the service."""
        url = self._find(shard)
        if (way := self._way(url) if url else None) is None:
            return None
        connection, path = way
        try:
            answer = connection.request(
                "GET", path, headers, attempts=_ATTEMPTS, max_wait=_MAX_WAIT, with_token=False
            )
            if answer.status == (206 if "Range" in headers else 200):
                return answer
            why = f"HTTP {answer.status}"
        except StoreError as error:
            why = error.message
        _log.warning("%s: links to shards lead nowhere: %s", self._path, why)
        self.pause()
        return None

    def pause(self, seconds: float = PAUSE) -> None:
        """Read from the service for a while."""
        self._links.clear()
        self._not_before = self._clock() + seconds

    def close(self) -> None:
        """Close the connections to other hosts; following links opens them again."""
        for connection in list(self._origins.values()):
            connection.close()

    def _find(self, shard: str) -> str:
        """The link to a shard; empty if there is none now."""
        link = self._links.get(shard)
        if link is None or self._clock() >= link[1]:
            if self._clock() < self._not_before or shard not in self.shards:
                return ""
            if not self._asking.acquire(blocking=False):
                return ""  # another thread asks: ours need not wait for that
            try:
                self._ask(self.shards.index(shard) // BATCH * BATCH)
            finally:
                self._asking.release()
            link = self._links.get(shard)
        return link[0] if link else ""

    def _ask(self, first: int) -> None:
        """Have the links of a batch."""
        asked, begun = self.shards[first : first + BATCH], self._clock()
        try:
            answer = self._service.request(
                "POST", self._path, {"Content-Type": "application/json"},
                json.dumps({"shards": asked}).encode(), attempts=_ATTEMPTS, max_wait=_MAX_WAIT,
            )  # fmt: skip
            if answer.status != 200:
                raise StoreError(f"HTTP {answer.status}")
            values = json.loads(answer.body)
            if values["expires_at"] is None:  # the service's own URLs: nothing is gained by them
                return self.pause(float("inf"))
            if (seconds := _seconds(values["expires_at"], answer)) <= 0:
                raise StoreError(f"they ended at {values['expires_at']}")
            urls = {item["shard"]: str(item["url"]) for item in values["urls"]}
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            _log.info("%s: no links to shards: %s", self._path, error)
            return self.pause()
        until = begun + seconds * random.uniform(*_USED)
        self._links |= {shard: (urls.get(shard, ""), until) for shard in asked}
        return None

    def _way(self, url: str) -> tuple[HttpConnection, str] | None:
        """The connection and path of a URL; None where we may not go there."""
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in os.environ.get("EVOFEED_LINK_ORIGINS", "").split(","):
            _log.info("links lead to %s, which EVOFEED_LINK_ORIGINS does not name", origin)
            return None
        if not url.isascii() or not parts.path.startswith("/"):
            return None
        if origin not in self._origins:
            self._origins[origin] = HttpConnection(origin)
        return self._origins[origin], f"{parts.path}?{parts.query}"


def _seconds(expires_at: str, answer: Answer) -> float:
    """How long links are good for, by the service's clock; ours may be another."""
    date = answer.headers.get("Date")
    now = parsedate_to_datetime(date) if date else datetime.datetime.now(datetime.UTC)
    return (datetime.datetime.fromisoformat(expires_at) - now).total_seconds()

"""Leases: small files that keep jobs and garbage collection from running at the same time.

A job needs shards that no ref reaches yet, some of them old: units of an earlier run.
While a job has a lease, garbage collection removes no shard; while a collection has one,
jobs wait. Each writes its own lease first and looks for the other's after, so of two
that begin at once at least one sees the other. A lease that is not renewed, because its process
has died, expires.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, Literal

from evofeed.base.errors import ShardMissing, StoreError
from evofeed.base.files import parse_json
from evofeed.store.manifest import canonical_json, check_name
from evofeed.store.storage import Storage, StoredObject

SECONDS: Final = 900.0
"""Time until a lease expires unless renewed; clocks of hosts must differ by less."""
_TICK: Final = 0.2

Kind = Literal["job", "gc"]
KINDS: Final[tuple[Kind, ...]] = ("job", "gc")


class Lease:
    """A lease of this process; call `renew` regularly."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage, self._key = storage, key
        self._until = 0.0
        self.renew()

    def renew(self) -> None:
        """Prolong it, if a third of its time has passed."""
        if time.time() > self._until - 2 / 3 * SECONDS:
            self._until = time.time() + SECONDS
            self._storage.put(self._key, canonical_json({"until": self._until}))


@contextlib.contextmanager
def hold(storage: Storage, kind: Kind, name: str) -> Iterator[Lease]:
    """Hold the lease `leases/<kind>-<name>` within the block."""
    key = f"leases/{kind}-{check_name(name, 'lease')}"
    lease = Lease(storage, key)
    try:
        yield lease
    finally:
        with contextlib.suppress(StoreError):  # it expires anyway
            storage.delete(key)


def current(storage: Storage, kind: Kind) -> dict[str, float]:
    """Leases of a kind that have not expired: Unix time of expiry by name."""
    leases = {}
    for item in storage.files("leases/"):
        item_kind, _, name = item.key.removeprefix("leases/").partition("-")
        if item_kind != kind:
            continue
        with contextlib.suppress(ShardMissing):  # deleted meanwhile
            until = _expiry(storage.read(item.key), item.modified)
            if until > time.time():
                leases[name] = until
    return leases


def expired(storage: Storage) -> list[StoredObject]:
    """Lease files, and partly written ones, of processes that died."""
    alive = {f"leases/{kind}-{name}" for kind in KINDS for name in current(storage, kind)}
    cutoff = time.time() - 2 * SECONDS
    files = storage.files("leases/")
    return [item for item in files if item.key not in alive and item.modified < cutoff]


def wait_for_none(storage: Storage, kind: Kind, seconds: float) -> dict[str, float]:
    """Wait until there is no lease of a kind; returns those that remain after `seconds`."""
    end = time.monotonic() + seconds
    while (leases := current(storage, kind)) and time.monotonic() < end:
        time.sleep(_TICK)
    return leases


def _expiry(data: bytes, modified: float) -> float:
    """Unix time of a lease's expiry; a file that does not parse counts from its last change."""
    try:
        values: Any = parse_json(data)
        return float(values["until"])
    except (ValueError, KeyError, TypeError):
        return modified + SECONDS

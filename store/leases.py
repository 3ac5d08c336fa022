"""Leases: small files by which a job and garbage collection keep out of each other's way.

A job needs shards that no ref reaches yet, some of them old: units that an earlier run did.
While a job's lease lives, garbage collection leaves every shard alone; while a collection's
lives, a job waits. Each writes its own lease first and looks for the other's after, so of two
that begin at once at least one sees the other. A lease that is not renewed, because its holder
is dead, ends by itself.
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
"""How long a lease lives unless renewed; clocks of hosts must agree better than that."""
_TICK: Final = 0.2

Kind = Literal["job", "gc"]
KINDS: Final[tuple[Kind, ...]] = ("job", "gc")


class Lease:
    """A lease that is held; `renew` it now and then."""

    def __init__(self, storage: Storage, key: str) -> None:
        self._storage, self._key = storage, key
        self._until = 0.0
        self.renew()

    def renew(self) -> None:
        """Prolong it, if a third of its time is gone."""
        if time.time() > self._until - 2 / 3 * SECONDS:
            self._until = time.time() + SECONDS
            self._storage.put(self._key, canonical_json({"until": self._until}))


@contextlib.contextmanager
def hold(storage: Storage, kind: Kind, name: str) -> Iterator[Lease]:
    """Hold the lease `leases/<kind>-<name>`."""
    key = f"leases/{kind}-{check_name(name, 'lease')}"
    lease = Lease(storage, key)
    try:
        yield lease
    finally:
        with contextlib.suppress(StoreError):  # it ends by itself
            storage.delete(key)


def living(storage: Storage, kind: Kind) -> dict[str, float]:
    """Leases of a kind that have not ended: name and Unix time of the end."""
    found = {}
    for item in storage.files("leases/"):
        began, _, name = item.key.removeprefix("leases/").partition("-")
        if began != kind:
            continue
        with contextlib.suppress(ShardMissing):  # given back meanwhile
            until = _end(storage.read(item.key), item.modified)
            if until > time.time():
                found[name] = until
    return found


def ended(storage: Storage) -> list[StoredObject]:
    """Leases of holders that died, and what died with them half written."""
    alive = {f"leases/{kind}-{name}" for kind in KINDS for name in living(storage, kind)}
    old = time.time() - 2 * SECONDS
    return [
        item for item in storage.files("leases/") if item.key not in alive and item.modified < old
    ]


def wait_for_none(storage: Storage, kind: Kind, seconds: float) -> dict[str, float]:
    """Wait until no lease of a kind lives; what still does after `seconds`."""
    end = time.monotonic() + seconds
    while (found := living(storage, kind)) and time.monotonic() < end:
        time.sleep(_TICK)
    return found


def _end(data: bytes, modified: float) -> float:
    """When a lease ends; one that does not parse counts from when it was written."""
    try:
        values: Any = parse_json(data)
        return float(values["until"])
    except (ValueError, KeyError, TypeError):
        return modified + SECONDS

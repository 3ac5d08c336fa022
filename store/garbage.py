"""Garbage collection: files that no snapshot reachable from a ref needs.

A file is removed only if it is unreachable *and* older than the grace period, so
a writer that has not moved its ref yet loses nothing; a featurize job also holds a lease
(`leases.py`), because its shards may be older. Refs are read before and after listing: if one
moved meanwhile, nothing is removed.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import Any

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.store import leases
from evofeed.store.history import ancestors, read_manifest
from evofeed.store.leases import Lease
from evofeed.store.opening import open_storage
from evofeed.store.refs import list_refs
from evofeed.store.shard import part_key, shard_key
from evofeed.store.storage import Storage, StoredObject

_FOLDERS = ("refs/", "snapshots/", "shards/", "leases/")
GRACE = 7 * 24 * 3600.0
"""Seconds; longer than a job that writes to the dataset may take."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """Files that were removed, or would be, and unreachable files that stay."""

    removed: tuple[StoredObject, ...]
    young: tuple[StoredObject, ...]
    held: tuple[StoredObject, ...]
    """Old enough, but a running job may need them."""
    dry_run: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the removed files."""
        return sum(item.nbytes for item in self.removed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "dry_run": self.dry_run,
            "nbytes": self.nbytes,
            "removed": [item.key for item in self.removed],
            "young": [item.key for item in self.young],
            "held": [item.key for item in self.held],
        }


def gc(
    uri: str, *, dry_run: bool = True, grace: float = GRACE, keep_history: bool = True
) -> GcReport:
    """Remove files that no ref needs; by default only list them.

    Args:
        grace: minimum age of a removed file in seconds.
        keep_history: ancestors of a ref's snapshot count as needed.

    Raises:
        DatasetMissing: there is no dataset at this address.
        RefConflict: a ref moved while files were listed; run again.
    """
    storage = open_storage(uri)
    if not any(True for folder in _FOLDERS for _ in storage.files(folder)):
        raise DatasetMissing("no dataset is here: is that its address?", path=storage.uri)
    if dry_run:
        return _collect(storage, grace, keep_history, None)
    with leases.hold(storage, "gc", uuid.uuid4().hex) as lease:
        return _collect(storage, grace, keep_history, lease)


def _collect(storage: Storage, grace: float, keep_history: bool, lease: Lease | None) -> GcReport:
    """The report of `gc`; without a lease nothing is removed."""
    busy = bool(leases.current(storage, "job"))
    refs = list_refs(storage)
    needed = _reachable(storage, [ref.digest for ref in refs], keep_history)
    idle = [
        item
        for prefix in ("shards/", "parts/", "snapshots/", "refs/", "probe/")
        for item in storage.files(prefix)
        if item.key not in needed and not _is_ref(item.key)
    ]
    before = time.time() - grace
    young = tuple(item for item in idle if item.modified > before)
    old = [item for item in idle if item.modified <= before]
    held = tuple(item for item in old if busy and item.key.startswith(("shards/", "parts/")))
    removed = (*(item for item in old if item not in held), *leases.expired(storage))
    if lease is not None:
        if [ref.digest for ref in list_refs(storage)] != [ref.digest for ref in refs]:
            raise RefConflict("a ref moved during collection: run it again", path=storage.uri)
        # Manifests first: a snapshot is either complete or removed.
        for item in sorted(removed, key=lambda item: not item.key.endswith("manifest.json")):
            lease.renew()
            storage.delete(item.key)
    return GcReport(removed, young, held, lease is None)


def _is_ref(key: str) -> bool:
    return key.startswith("refs/") and not key.startswith("refs/.tmp-")


def _reachable(storage: Storage, digests: list[str], keep_history: bool) -> set[str]:
    keys: set[str] = set()
    for digest in digests:
        history = ancestors(storage, digest) if keep_history else []
        manifests = {digest: read_manifest(storage, digest)}
        manifests |= {snapshot.digest: snapshot.manifest for snapshot in history}
        for ancestor, manifest in manifests.items():
            names = ("manifest.json", "index.arrow", *manifest.more_files)
            keys |= {f"snapshots/{ancestor}/{name}" for name in names}
            for shard in manifest.shards:
                keys |= {shard_key(shard.name), part_key(shard.name)}
    return keys

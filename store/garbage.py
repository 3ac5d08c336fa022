"""Garbage collection: files that no snapshot reachable from a ref needs.

A file is removed only if it is unreachable *and* older than the grace period, so
a writer that is still writing, or about to move its ref, loses nothing; a featurize job
also holds a lease (`leases.py`), for its shards may be older. Refs are read twice, before
and after listing: if one moved meanwhile, nothing is removed.
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
"""Seconds; longer than any job that writes here may take."""


@dataclass(frozen=True, slots=True)
class GcReport:
    """What was removed, or would be, and what was left because it is young."""

    removed: tuple[StoredObject, ...]
    young: tuple[StoredObject, ...]
    held: tuple[StoredObject, ...]
    """Old and unreachable, but a job is running that may need them."""
    dry_run: bool

    @property
    def nbytes(self) -> int:
        """Bytes of what was removed."""
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
    """Remove what no ref needs any more; by default only say what that would be.

    Args:
        grace: seconds a file must be old; younger ones stay.
        keep_history: snapshots from which a ref's snapshot was made count as needed.

    Raises:
        DatasetMissing: there is nothing of a dataset there.
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
    """What `gc` does; without a lease it removes nothing."""
    busy = bool(leases.living(storage, "job"))
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
    removed = (*(item for item in old if item not in held), *leases.ended(storage))
    if lease is not None:
        if [ref.digest for ref in list_refs(storage)] != [ref.digest for ref in refs]:
            raise RefConflict("a ref moved during collection: run it again", path=storage.uri)
        # Manifests first: a snapshot is either whole or gone.
        for item in sorted(removed, key=lambda item: not item.key.endswith("manifest.json")):
            lease.renew()
            storage.delete(item.key)
    return GcReport(removed, young, held, lease is None)


def _is_ref(key: str) -> bool:
    return key.startswith("refs/") and not key.startswith("refs/.tmp-")


def _reachable(storage: Storage, digests: list[str], keep_history: bool) -> set[str]:
    keys: set[str] = set()
    for digest in digests:
        line = ancestors(storage, digest) if keep_history else []
        manifests = {digest: read_manifest(storage, digest)}
        manifests |= {snapshot.digest: snapshot.manifest for snapshot in line}
        for each, manifest in manifests.items():
            names = ("manifest.json", "index.arrow", *manifest.more_files)
            keys |= {f"snapshots/{each}/{name}" for name in names}
            for shard in manifest.shards:
                keys |= {shard_key(shard.name), part_key(shard.name)}
    return keys

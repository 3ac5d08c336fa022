"""A snapshot copied elsewhere, as it is."""

from __future__ import annotations

import hashlib
import os

from evofeed.base.errors import ShardCorrupt
from evofeed.store.dataset import Dataset
from evofeed.store.history import Snapshot
from evofeed.store.opening import open_storage
from evofeed.store.refs import move_ref
from evofeed.store.shard import shard_key


def copy_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    snapshot: str = "main",
    ref: str = "main",
    expect: str | None = None,
    token: str | None = None,
) -> Snapshot:
    """Copy a snapshot between folders, buckets and services; its digest stays.

    Args:
        source: where it is; HTTP too.
        target: a folder or bucket; shards that are there already are not fetched again.
        snapshot: ref or digest.
        ref: name to move at the target, which must be at `expect`.
        expect: digest the ref must have there now; None if it must not exist.
        token: bearer token for the source.

    Raises:
        ShardCorrupt: what arrived is not what the manifest names.
        RefConflict: `ref` is elsewhere.
    """
    dataset, storage = Dataset.open(source, snapshot, token=token), open_storage(target)
    there = {item.key: item.nbytes for item in storage.files("shards/")}
    for entry in dataset.manifest.shards:
        key = shard_key(entry.name)
        if there.get(key) == entry.nbytes:
            continue
        data = dataset.storage.read(key)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise ShardCorrupt("sha256 does not match", path=f"{dataset.uri}/{key}")
        storage.put(key, data)
    folder = f"snapshots/{dataset.digest}"
    for name in ("index.arrow", *dataset.manifest.more_files):
        storage.put(f"{folder}/{name}", dataset.storage.read(f"{folder}/{name}"))
    storage.put(f"{folder}/manifest.json", dataset.manifest.to_bytes())
    move_ref(storage, ref, dataset.digest, expect)
    return Snapshot(dataset.digest, dataset.manifest)

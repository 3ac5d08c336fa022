"""A snapshot copied elsewhere: as it is, or compressed or unpacked on the way."""

from __future__ import annotations

import hashlib
import os

from evofeed.base.errors import ShardCorrupt
from evofeed.store.dataset import Dataset
from evofeed.store.encode import compress
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical
from evofeed.store.manifest import Manifest
from evofeed.store.opening import open_storage
from evofeed.store.refs import move_ref
from evofeed.store.shard import read_part, shard_key
from evofeed.store.storage import Storage
from evofeed.store.writer import SHARD_NBYTES, ShardFiller, with_cluster_sizes, write_snapshot


def copy_dataset(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    snapshot: str = "main",
    zstd: bool | None = None,
    ref: str = "main",
    expect: str | None = None,
    token: str | None = None,
    shard_nbytes: int = SHARD_NBYTES,
) -> Snapshot:
    """Copy a snapshot between folders, buckets and services.

    Args:
        source: where it is; HTTP too.
        target: a folder or bucket; shards that are there already are not fetched again.
        snapshot: ref or digest.
        zstd: None copies files as they are and keeps the digest; True compresses every
            column that gets smaller, False unpacks (cold storage to a local disk, once).
        ref: name to move at the target, which must be at `expect`.
        expect: digest the ref must have there now; None if it must not exist.
        token: bearer token for the source.
        shard_nbytes: where a new shard begins, if shards are written again.

    Raises:
        ShardCorrupt: what arrived is not what the manifest names.
        RefConflict: `ref` is elsewhere.
    """
    dataset, storage = Dataset.open(source, snapshot, token=token), open_storage(target)
    if zstd is None:
        copied = _mirror(dataset, storage)
    else:
        copied = _recode(dataset, storage, zstd, shard_nbytes)
    move_ref(storage, ref, copied.digest, expect)
    return copied


def _mirror(dataset: Dataset, storage: Storage) -> Snapshot:
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
    return Snapshot(dataset.digest, dataset.manifest)


def _recode(dataset: Dataset, storage: Storage, zstd: bool, shard_nbytes: int) -> Snapshot:
    if len(dataset.assemblies) or len(dataset.entries):
        raise ValueError(
            "a snapshot with assemblies or entries is copied as it is: leave `zstd` out"
        )
    shards = ShardFiller(storage, shard_nbytes)
    for row in range(len(dataset)):
        decoder = dataset.spans.decoder(row, dataset.spans.read_span(row))
        columns = {name: decoder.raw(name) for name in decoder.columns}
        if zstd:
            columns = {name: compress(name, column) for name, column in columns.items()}
        shards.add(decoder.place.chain_id, columns)
    shards.flush()
    entries = list(shards.entries.values())
    sizes = dict(zip(dataset, dataset.index["cluster_size"].to_pylist(), strict=True))
    table = canonical([read_part(storage, entry) for entry in entries])
    manifest: Manifest = dataset.manifest
    return write_snapshot(
        storage,
        with_cluster_sizes(table, sizes),
        entries,
        config=manifest.config | {"copied_from": dataset.digest},
        dropped=manifest.dropped,
    )

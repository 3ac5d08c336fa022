"""Snapshots of a dataset, and the differences between two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import DatasetMissing, ShardMissing
from evofeed.store.manifest import DIGEST, Manifest
from evofeed.store.refs import describe_refs, read_ref
from evofeed.store.storage import ReadOnlyStorage, Storage

_SHORT = re.compile(r"[0-9a-f]{8,63}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published state of a dataset."""

    digest: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Diff:
    """Chain ids that are only in the second snapshot, only in the first, or differ in bytes."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {name: list(getattr(self, name)) for name in ("added", "removed", "changed")}


def find_snapshot(storage: Storage, name: str) -> str:
    """Digest of a snapshot by a ref, by the digest, or by its first 8 digits or more.

    Raises:
        DatasetMissing: there is no such ref, and no digest, or several, begin with `name`.
    """
    if DIGEST.fullmatch(name):
        return name
    try:
        return read_ref(storage, name).digest
    except DatasetMissing:
        digests = _digests_starting_with(storage, name) if _SHORT.fullmatch(name) else []
        if len(digests) != 1:
            raise
        return digests[0]


def _digests_starting_with(storage: Storage, name: str) -> list[str]:
    try:
        digests = {item.key.split("/")[1] for item in storage.files("snapshots/")}
    except ReadOnlyStorage:
        return []
    return [digest for digest in digests if digest.startswith(name)]


def read_manifest(storage: Storage, digest: str) -> Manifest:
    """The manifest of a snapshot.

    Raises:
        DatasetMissing: there is no such snapshot.
        ShardCorrupt: its bytes are not those of its digest.
    """
    key = f"snapshots/{digest}/manifest.json"
    try:
        data = storage.read(key)
    except ShardMissing:
        problem = f"no snapshot {digest[:12]} (`evofeed snapshots ls` lists all)"
        raise DatasetMissing(f"{problem}: {describe_refs(storage)}", path=storage.uri) from None
    return Manifest.from_bytes(data, digest, f"{storage.uri}/{key}")


def list_snapshots(storage: Storage, head: str | None = None) -> list[Snapshot]:
    """All snapshots, children before parents; ancestors of `head` where files cannot be listed."""
    try:
        keys = [item.key for item in storage.files("snapshots/")]
    except ReadOnlyStorage:
        return ancestors(storage, head or read_ref(storage, "main").digest)
    digests = [key.split("/")[1] for key in keys if key.endswith("/manifest.json")]
    manifests = {digest: read_manifest(storage, digest) for digest in digests}

    def depth(digest: str | None) -> int:
        steps = 0
        while digest in manifests:
            digest, steps = manifests[digest].parent, steps + 1
        return steps

    order = sorted(manifests, key=lambda digest: (-depth(digest), digest))
    return [Snapshot(digest, manifests[digest]) for digest in order]


def ancestors(storage: Storage, digest: str) -> list[Snapshot]:
    """A snapshot, its parent and so on, as far back as they still exist."""
    line: list[Snapshot] = []
    parent: str | None = digest
    while parent is not None:
        try:
            line.append(Snapshot(parent, read_manifest(storage, parent)))
        except DatasetMissing:
            break
        parent = line[-1].manifest.parent
    return line


def diff_indexes(a: pa.Table, b: pa.Table) -> Diff:
    """Chains that changed from index `a` to index `b`."""
    in_b = pc.is_in(a["chain_id"], value_set=b["chain_id"].combine_chunks())
    in_a = pc.is_in(b["chain_id"], value_set=a["chain_id"].combine_chunks())
    old, new = a.filter(in_b), b.filter(in_a)  # both sorted by id: row by row the same chain
    changed = old.filter(pc.not_equal(old["checksum"], new["checksum"]))
    return Diff(
        added=tuple(b.filter(pc.invert(in_a))["chain_id"].to_pylist()),
        removed=tuple(a.filter(pc.invert(in_b))["chain_id"].to_pylist()),
        changed=tuple(changed["chain_id"].to_pylist()),
    )

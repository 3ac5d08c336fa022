"""Snapshots made over HTTP: of shards that were sent, of other snapshots, or sent whole.

Nothing is taken on trust: shards are parsed when they come in, an index must be the one that
its shards have, and the ref moves within its policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.errors import RefConflict, ShardCorrupt, ShardMissing, StoreError
from evofeed.service.access.auth import Principal
from evofeed.service.problems import Problem
from evofeed.service.refs.move import move_ref
from evofeed.service.snapshots.snapshot import StoreView
from evofeed.service.state import Service
from evofeed.store import (
    DatasetWriter,
    Manifest,
    ShardEntry,
    Snapshot,
    add_shards,
    merge,
    replace_chains,
)
from evofeed.store.inner import (
    MoveRef,
    Storage,
    hold,
    plain_values,
    read_index,
    read_part,
    shard_key,
    store_shard,
    wait_for_none,
)

SHARD: Final = re.compile(r"[0-9a-f]{64}\.arrow")
_GC_SECONDS: Final = 10.0


def mover(
    service: Service, principal: Principal, dataset: str, expect: str | None, message: str
) -> MoveRef:
    """What moves a ref for the store: within its policy, and only from where it was said to be."""

    def move(storage: Storage, ref: str, digest: str, found: str | None) -> object:
        if found != expect:
            raise RefConflict(f"ref {ref!r} has moved", path=storage.uri)
        return move_ref(
            service.catalog, service.database, dataset=dataset, ref=ref, digest=digest,
            expect=expect, principal=principal, message=message,
        )  # fmt: skip

    return move


def keep_shard(view: StoreView, data: pa.Buffer, name: str) -> ShardEntry:
    """Put a shard where it belongs, once each of its chains has been decoded.

    Raises:
        Problem: 422, it is no sound shard.
    """
    try:
        return store_shard(view.storage, data)
    except StoreError as error:
        if not isinstance(error, ShardCorrupt) and view.uri in str(error.path or ""):
            raise
        raise _unsound(name, error.message) from None


def missing(view: StoreView, names: Sequence[str]) -> list[str]:
    """Those of these shards that are not in the dataset's place."""
    there = _sizes(view)
    return [name for name in names if name not in there]


def commit(
    view: StoreView,
    shards: Sequence[str],
    *,
    mode: str,
    ref: str | None,
    expect: str | None,
    move: MoveRef,
    config: Mapping[str, Any],
    dropped: Sequence[Mapping[str, Any]],
    cluster_sizes: Mapping[str, int] | None,
) -> Snapshot:
    """Make a snapshot of shards that are there, and move a ref to it.

    Args:
        view: of the dataset.
        shards: their names.
        mode: `new`: of these alone; `add` and `replace`: with the chains of the ref's
            snapshot, of which the new ones must be none, or take the place of some.
        ref: what moves; None: nothing.
        expect: digest it must be at.
        move: moves it.
        config: as of `DatasetWriter.commit`, for `new`.
        dropped: likewise.
        cluster_sizes: likewise.

    Raises:
        Problem: 409, shards are not there; 422, chains are twice in them.
        RefConflict: the ref is elsewhere.
    """
    with _kept(view):
        entries = _entries(view, shards)
        try:
            if mode == "add":
                return add_shards(view.uri, entries, ref=ref or "", move=move)
            if mode == "replace":
                return replace_chains(view.uri, entries, ref=ref or "", move=move)
            writer = DatasetWriter(view.uri)
            for entry in entries:
                writer.add_shard(entry)
            return writer.commit(
                ref or "none",
                expect=expect,
                config=config,
                dropped=dropped,
                cluster_sizes=cluster_sizes,
                move=move if ref is not None else _nothing,
            )
        except ValueError as error:
            raise _refused(error) from None


def merge_into(view: StoreView, other: str, digest: str, ref: str, move: MoveRef) -> Snapshot:
    """Make a snapshot with the chains of another one too, and move a ref to it.

    Raises:
        Problem: 422, a chain is in both and differs.
        RefConflict: the ref is elsewhere.
    """
    with _kept(view):
        try:
            return merge(view.uri, other, ref=ref, other_snapshot=digest, move=move)
        except ValueError as error:
            raise _refused(error) from None


def keep_snapshot(view: StoreView, digest: str, data: memoryview) -> Manifest:
    """Put a snapshot whose shards are there: manifest, a line feed, index, other files by name.

    Raises:
        Problem: 422, it is not the snapshot of that digest, or not of these shards; 409,
            shards are not there.
    """
    head = bytes(data[: 64 << 20]).partition(b"\n")[0]
    try:
        manifest = Manifest.from_bytes(head, digest, "manifest")
    except StoreError as error:
        raise _unsound(f"snapshot {digest[:12]}", error.message) from None
    if manifest.to_bytes() != head:
        raise _unsound(f"snapshot {digest[:12]}", "the manifest is not spelt canonically")
    files = _files(manifest, data[len(head) + 1 :])
    with _kept(view):
        folder = f"snapshots/{digest}"
        with contextlib.suppress(ShardMissing):
            if view.storage.read(f"{folder}/manifest.json") == head:
                return manifest
        _require_index_of(view, manifest, files["index.arrow"])
        for name, content in files.items():
            view.storage.put(f"{folder}/{name}", content)
        view.storage.put(f"{folder}/manifest.json", head)  # last: it marks completeness
    return manifest


def _files(manifest: Manifest, data: memoryview) -> dict[str, bytes]:
    """The files behind a manifest, by name, each with the bytes that the manifest says."""
    more = manifest.assemblies["files"] if manifest.assemblies else {}
    said = {"index.arrow": (manifest.index_nbytes, manifest.index_sha256)}
    said |= {n: (int(more[n]["nbytes"]), more[n]["sha256"]) for n in manifest.more_files}
    found, at = {}, 0
    for name, (nbytes, sha256) in said.items():
        content = bytes(data[at : at + nbytes])
        at += nbytes
        if hashlib.sha256(content).hexdigest() != sha256:
            raise _unsound(name, "its sha256 is not what the manifest says")
        found[name] = content
    if at != len(data):
        raise _unsound("the body", f"{len(data) - at} bytes are left over")
    return found


def _require_index_of(view: StoreView, manifest: Manifest, data: bytes) -> None:
    """Refuse an index with rows that its shards do not have."""
    try:
        index = read_index(data, "index.arrow")
    except StoreError as error:
        raise _unsound("index.arrow", error.message) from None
    entries = {entry.name: entry for entry in _entries(view, [s.name for s in manifest.shards])}
    if any(entries[shard.name] != shard for shard in manifest.shards):
        raise _unsound("the manifest", "it says another size of a shard than the shard has")
    if not set(index["shard"].unique().to_pylist()) <= set(entries):
        raise _unsound("index.arrow", "it names a shard that the manifest does not list")
    if index.num_rows != manifest.num_chains:
        raise _unsound("index.arrow", "it has another number of chains than the manifest says")
    for name, entry in entries.items():
        rows = index.filter(pc.equal(index["shard"], name))
        part = read_part(view.storage, entry)
        part = part.filter(pc.is_in(part["chain_id"], value_set=rows["chain_id"].combine_chunks()))
        if not _same_rows(rows, part):
            raise _unsound("index.arrow", f"its rows of shard {name[:12]} are not the shard's")


def _same_rows(one: pa.Table, other: pa.Table) -> bool:
    one, other = (table.sort_by("chain_id") for table in (one, other))
    return len(one) == len(other) and all(
        plain_values(one[name]).equals(plain_values(other[name]))
        for name in one.column_names
        if name != "cluster_size"  # what a whole dataset says of a chain
    )


def _entries(view: StoreView, names: Sequence[str]) -> list[ShardEntry]:
    there, found = _sizes(view), []
    if gone := [name for name in names if name not in there]:
        raise Problem(
            409,
            "shards_missing",
            f"{len(gone)} shards are not there: {', '.join(gone[:3])}",
            next="send them with PUT /v1/datasets/{name}/shards/{shard}",
        )
    for name in dict.fromkeys(names):
        entry = ShardEntry(name, name.removesuffix(".arrow"), there[name], 0)
        chains = read_part(view.storage, entry).num_rows
        found.append(ShardEntry(entry.name, entry.sha256, entry.nbytes, chains))
    return found


def _sizes(view: StoreView) -> dict[str, int]:
    prefix = shard_key("")
    found = ((item.key.removeprefix(prefix), item.nbytes) for item in view.storage.files(prefix))
    return {name: nbytes for name, nbytes in found if SHARD.fullmatch(name)}


@contextlib.contextmanager
def _kept(view: StoreView) -> Iterator[None]:
    """A while in which garbage collection leaves shards alone that nothing names yet."""
    with hold(view.storage, "job", f"commit-{secrets.token_hex(8)}"):
        if wait_for_none(view.storage, "gc", _GC_SECONDS):
            raise Problem(
                503,
                "collecting",
                "garbage of this dataset is being collected",
                next="retry when it is done",
                wait=10,
            )
        yield


def _nothing(*_: object) -> None:
    """Move no ref."""


def _refused(error: ValueError) -> Problem:
    return Problem(422, "bad_snapshot", str(error), next="leave these chains out on one side")


def _unsound(what: str, why: str) -> Problem:
    return Problem(422, "bad_upload", f"{what}: {why}", next="send the file as evofeed wrote it")

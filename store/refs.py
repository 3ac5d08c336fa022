"""Refs: names that point at snapshots and move only by compare-and-swap.

A deleted ref is a file whose digest is null, because not all storages have a conditional delete.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evofeed.base.errors import DatasetMissing, RefConflict, ShardCorrupt, ShardMissing
from evofeed.base.files import parse_json
from evofeed.store.manifest import DIGEST, canonical_json, check_name
from evofeed.store.storage import LocalStorage, ReadOnlyStorage, Storage, now

_COMMANDS = "`evofeed featurize INPUT DATASET` (of entries `evofeed entries prepare`)"
SWAP_ATTEMPTS = 5
"""Attempts at a compare-and-swap when other processes move the same ref."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A name, the digest it points at, and the time of its last move (UTC, ISO 8601)."""

    name: str
    digest: str
    updated_at: str


def address_and_ref(text: str, snapshot: str = "main") -> tuple[str, str]:
    """Address and ref of `DATASET@REF`; `snapshot` if `text` names none, or is a folder.

    Raises:
        ValueError: `text` names a ref, and `snapshot` is another.
    """
    address, mark, ref = text.rpartition("@")
    if not mark or "/" in ref or Path(text).is_dir():
        return text, snapshot
    if snapshot != "main":
        raise ValueError(f"{text} names a snapshot, and {snapshot} is another: give one")
    return address, ref


def read_ref(storage: Storage, name: str) -> Ref:
    """The ref of that name.

    Raises:
        DatasetMissing: there is none.
        ShardCorrupt: its file is damaged.
    """
    _, ref = _load(storage, name)
    if ref is None:
        raise DatasetMissing(f"no ref {name!r}: {describe_refs(storage)}", path=storage.uri)
    return ref


def _load(storage: Storage, name: str) -> tuple[bytes | None, Ref | None]:
    """Bytes of a ref's file, None if it has none; and the ref, None if it was deleted as well."""
    try:
        data = storage.read(f"refs/{check_name(name, 'ref')}")
    except ShardMissing:
        return None, None
    return data, _parse(data, name, storage.uri)


def describe_refs(storage: Storage) -> str:
    """The refs of a storage, or why it has none: the second half of an error message."""
    if isinstance(storage, LocalStorage) and not storage.root.is_dir():
        if storage.root.exists():
            return "this is a file, and a dataset is a folder"
        return f"there is no such folder; {_COMMANDS} makes one"
    try:
        names = [ref.name for ref in list_refs(storage, or_main=False)]
    except ReadOnlyStorage:
        return "is that the dataset's address, and is anything published there?"
    if not names:
        return f"nothing is published here: run {_COMMANDS}"
    return f"its refs are {', '.join(names)}"


def _parse(data: bytes, name: str, uri: str) -> Ref | None:
    """The ref; None if it was deleted."""
    try:
        values = parse_json(data)
        if values["digest"] is None:
            return None
        ref = Ref(name, str(values["digest"]), str(values.get("updated_at", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        ref = Ref(name, "", "")
    if not DIGEST.fullmatch(ref.digest):
        raise ShardCorrupt(
            f"ref {name!r} holds {data[:40]!r}, not a digest: remove this file; then `evofeed "
            f"snapshots tag DATASET {name} --snapshot DIGEST` puts it at one that `ls` lists",
            path=f"{uri}/refs/{name}",
        )
    return ref


def list_refs(storage: Storage, *, or_main: bool = True) -> list[Ref]:
    """All refs, by name; only `main` where files cannot be listed.

    Raises:
        ReadOnlyStorage: they cannot, and `or_main` is False.
    """
    try:
        names = [item.key.removeprefix("refs/") for item in storage.files("refs/")]
    except ReadOnlyStorage:
        if not or_main:
            raise
        return [read_ref(storage, "main")]
    refs = (_load(storage, name)[1] for name in names if not name.startswith("."))
    return [ref for ref in refs if ref is not None]


def move_ref(
    storage: Storage, name: str, digest: str | None, expect: str | None, *, again: bool = True
) -> Ref:
    """Point a ref at a snapshot if it still points at `expect` (None: does not exist).

    With `again`, a ref that already points at `digest` is a success, so a publisher that died
    after moving the ref may run again; without, a call that returns has moved it.
    A `digest` of None deletes the ref: its snapshot stays until `gc`.

    Returns:
        The ref; a deleted one with its old digest and the time of the deletion.

    Raises:
        RefConflict: another process moved it; names the digest it is at now.
    """
    key = f"refs/{check_name(name, 'ref')}"
    for _ in range(SWAP_ATTEMPTS):
        data, current = _load(storage, name)
        if again and current is not None and current.digest == digest:
            return current
        actual = current.digest if current else None
        if actual != expect:
            if actual is None:
                message = f"there is no ref {name!r} to move: `evofeed snapshots ls` lists them"
            else:
                reason = f"not at {expect[:12]}" if expect else "not new"
                message = (
                    f"ref {name!r} is at {actual[:12]}, {reason}: "
                    "open the dataset again and commit on top of what is there"
                )
            raise RefConflict(message, path=storage.uri)
        new = Ref(name, digest or expect or "", now())
        values = {"name": name, "digest": digest, "updated_at": new.updated_at}
        if storage.swap(key, data, canonical_json(values)):
            return new  # otherwise another process was faster: read the ref again
    raise RefConflict(f"ref {name!r} keeps moving: try again later", path=storage.uri)

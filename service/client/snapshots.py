"""Refs and snapshots of datasets, as the service's client reads and writes them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from evofeed.service.client.requests import Requests, made, part
from evofeed.service.client.views import MadeSnapshot, Move, RefState
from evofeed.store import Dataset
from evofeed.store.inner import shard_key


class SnapshotRequests(Requests):
    """What `Client` asks about refs and snapshots."""

    def refs(self, dataset: str) -> list[RefState]:
        """All refs of a dataset."""
        said = self._get(f"/v1/datasets/{part(dataset)}/refs")
        return [made(RefState, one) for one in said["refs"]]

    def ref(self, dataset: str, ref: str = "main") -> RefState:
        """Where a ref points."""
        return made(RefState, self._get(_ref(dataset, ref)))

    def move_ref(
        self, dataset: str, ref: str, digest: str, *, expect: str | None, message: str = ""
    ) -> RefState:
        """Point a ref at a snapshot, if it still points at `expect` (None: it is a new one).

        Raises:
            RefConflict: it points elsewhere.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"digest": digest, "message": message}
        return made(RefState, self._send("PUT", _ref(dataset, ref), body, headers))

    def delete_ref(self, dataset: str, ref: str, *, expect: str, message: str = "") -> None:
        """Delete a ref that still points at `expect`; its history stays.

        Raises:
            RefConflict: it points elsewhere.
        """
        path = f"{_ref(dataset, ref)}?{urlencode({'message': message})}"
        self._send("DELETE", path, None, {"If-Match": f'"{expect}"'})

    def history(self, dataset: str, ref: str = "main") -> Iterator[Move]:
        """Where a ref has been, newest first."""
        for move in self._paged(f"{_ref(dataset, ref)}/history", "moves", "before"):
            yield made(Move, move)

    def policy(self, dataset: str, ref: str = "main") -> dict[str, Any]:
        """What must hold when a ref moves: `protected`, `reviewer`, `forbid`, `apart_from`."""
        found: dict[str, Any] = self._get(f"{_ref(dataset, ref)}/policy")
        return found

    def set_policy(self, dataset: str, ref: str, **policy: Any) -> None:
        """Replace what must hold when a ref moves; what is left out is not asked for."""
        self._send("PUT", f"{_ref(dataset, ref)}/policy", policy)

    # writing

    def upload_shard(self, dataset: str, path: str | os.PathLike[str]) -> str:
        """Send a shard's file; its name, for `commit`."""
        with Path(path).open("rb") as file:
            name = f"{hashlib.file_digest(file, 'sha256').hexdigest()}.arrow"
            with (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
                memoryview(data) as view,
            ):
                self._put(f"/v1/datasets/{part(dataset)}/shards/{name}", view)
        return name

    def missing_shards(self, dataset: str, names: Sequence[str]) -> list[str]:
        """Those of these shards that have to be sent."""
        path = f"/v1/datasets/{part(dataset)}/missing-shards"
        said = self._send("POST", path, {"shards": list(names)}, repeatable=False)
        return list(said["missing"])

    def commit(
        self,
        dataset: str,
        shards: Sequence[str],
        *,
        expect: str | None,
        ref: str | None = "main",
        **options: Any,
    ) -> MadeSnapshot:
        """Make a snapshot of shards that were sent, and move a ref from `expect` to it.

        Args:
            dataset: its name.
            shards: their names.
            expect: digest that the ref is at; None: there is no such ref yet.
            ref: what moves; None: nothing.
            options: the other fields of `POST /v1/datasets/{name}/snapshots`: `mode`, `message`,
                `config`, ...

        Raises:
            RefConflict: the ref is elsewhere; nothing has changed.
        """
        headers = {"If-Match": f'"{expect}"'} if expect else {"If-None-Match": "*"}
        body = {"shards": list(shards), "ref": ref, **options}
        path = f"/v1/datasets/{part(dataset)}/snapshots"
        return made(MadeSnapshot, self._send("POST", path, body, headers, patient=True))

    def merge(
        self,
        dataset: str,
        other: str,
        *,
        expect: str,
        snapshot: str = "main",
        ref: str = "main",
        message: str = "",
    ) -> MadeSnapshot:
        """Add the chains of `snapshot` of dataset `other` to those that a ref at `expect` has.

        Raises:
            RefConflict: the ref is elsewhere; nothing has changed.
            ServiceError: chains are in both and differ.
        """
        body = {"dataset": other, "snapshot": snapshot, "ref": ref, "message": message}
        headers = {"If-Match": f'"{expect}"'}
        path = f"/v1/datasets/{part(dataset)}/merge"
        return made(MadeSnapshot, self._send("POST", path, body, headers, patient=True))

    def push(
        self,
        source: str | os.PathLike[str],
        dataset: str,
        *,
        snapshot: str = "main",
        ref: str | None = "main",
        message: str = "",
        seen: Callable[[int, int], None] | None = None,
    ) -> MadeSnapshot:
        """Send a snapshot as it is, with the shards that the service lacks, and move a ref to it.

        What was sent stays there for a while: sent again, it goes on.

        Args:
            source: the dataset it is in: a folder, bucket or service.
            dataset: name of a registered one.
            snapshot: ref or digest.
            ref: what shall point at it; None: nothing.
            message: why, for the ref's history.
            seen: called for each shard that has arrived: how many so far, of how many.

        Raises:
            RefConflict: somebody moved the ref meanwhile.
        """
        there = {one.name: one.digest for one in self.refs(dataset)}
        where = f"/v1/datasets/{part(dataset)}"
        with Dataset.open(source, snapshot) as ours:
            lacking = self.missing_shards(dataset, [one.name for one in ours.manifest.shards])
            for count, name in enumerate(lacking):
                self._put(f"{where}/shards/{name}", ours.storage.read(shard_key(name)))
                if seen is not None:
                    seen(count + 1, len(lacking))
            names = ("index.arrow", *ours.manifest.more_files)
            files = [ours.storage.read(f"snapshots/{ours.digest}/{name}") for name in names]
            data = b"".join([ours.manifest.to_bytes(), b"\n", *files])
            said = json.loads(self._put(f"{where}/snapshots/{ours.digest}", data))
        sent = made(MadeSnapshot, said)
        if ref is None:
            return sent
        if there.get(ref) != sent.digest:
            self.move_ref(dataset, ref, sent.digest, expect=there.get(ref), message=message)
        return dataclasses.replace(sent, ref=ref)


def _ref(dataset: str, ref: str) -> str:
    return f"/v1/datasets/{part(dataset)}/refs/{part(ref)}"

"""Registered datasets and the open contents of their stores.

The store is the truth: refs lie there, so that a reader of the bare folder and
a reader of the service agree. The database adds names and the refs' history.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from evofeed import loader  # lazily loaded, so that a start does not wait for it
from evofeed.base.errors import StoreError
from evofeed.base.within import below
from evofeed.service.access.places import canonical_place, open_place
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, JobRow, RefMove, record
from evofeed.service.problems import Problem
from evofeed.service.remembered import Remembered
from evofeed.store import Dataset, ShardEntry
from evofeed.store.inner import (
    DIGEST,
    LocalStorage,
    Ref,
    S3Storage,
    Storage,
    column_kinds,
    column_statistics,
    list_refs,
    move_ref,
    read_manifest,
    read_ref,
    shard_key,
)

if TYPE_CHECKING:
    from evofeed.loader import LoaderConfig, RunPlan


ReadAt = Callable[[int, int], bytes | memoryview]
"""`read(offset, length)`: exactly those bytes."""


class StoreView:
    """The store behind a dataset, opened by `open_place`; safe to use from many threads."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.manifest = lru_cache(None)(lambda digest: read_manifest(storage, digest))
        self._shards: dict[str, ShardEntry] = {}  # of the snapshots read so far
        self._seen: set[str] = set()

    def ref(self, name: str) -> Ref:
        """Where a ref points (raises DatasetMissing: there is no such ref)."""
        return read_ref(self.storage, name)

    def refs(self) -> list[Ref]:
        """All refs, by name."""
        return list_refs(self.storage)

    def move_ref(self, name: str, digest: str | None, expect: str | None) -> Ref:
        """Move a ref (None: delete it) by the store's own compare-and-swap.

        Raises:
            RefConflict: it points elsewhere.
        """
        return move_ref(self.storage, name, digest, expect, again=False)

    def digests(self) -> list[tuple[str, float]]:
        """All snapshots and when each was completed (Unix time)."""
        return [
            (digest, item.modified)
            for item in self.storage.files("snapshots/")
            for _, digest, file in [item.key.split("/", 2)]
            if file == "manifest.json" and DIGEST.fullmatch(digest)
        ]

    def find_shard(self, name: str) -> ShardEntry:
        """A shard by name, if some snapshot lists it (raises Problem: 404)."""
        if name not in self._shards:
            for digest, _ in self.digests():
                if digest not in self._seen:
                    self._shards |= {entry.name: entry for entry in self.manifest(digest).shards}
                    self._seen.add(digest)
        if (entry := self._shards.get(name)) is not None:
            return entry
        message = f"no snapshot of this dataset lists shard {name[:80]!r}"
        raise Problem(404, "shard_missing", message, next="read the manifest again")

    def path_of(self, shard: str) -> Path | None:
        """The path of a shard on a local disk, else None."""
        local = self.storage
        return local.path(shard_key(shard)) if isinstance(local, LocalStorage) else None

    def sign(self, names: list[str], seconds: int) -> list[str] | None:
        """Presigned GET URLs of shards, valid for `seconds`; None if the storage cannot sign.

        Raises:
            StoreError: the storage refused.
        """
        if not isinstance(self.storage, S3Storage):
            return None
        import obstore.exceptions

        keys = [shard_key(name) for name in names]
        lifetime = datetime.timedelta(seconds=seconds)
        try:
            return list(obstore.sign(self.storage.store(), "GET", keys, lifetime))
        except obstore.exceptions.BaseError as error:
            first = str(error).strip().splitlines()[0]
            raise StoreError(f"cannot sign: {first}", path=self.storage.uri) from None

    def reader(self, key: str) -> ReadAt:
        """Reads spans of a file."""

        def read(offset: int, length: int) -> memoryview:
            out = np.empty(length, np.uint8).data
            self.storage.read_into(key, offset, out)
            return out

        return read


class Catalog:
    """The datasets of one service; safe to use from many threads.

    While the database is away, a dataset's place is cached for `grace` seconds.
    """

    def __init__(self, database: Database, grace: float = 0.0) -> None:
        self.database = database
        self._places = Remembered[str, DatasetRow](grace)
        # Content under a digest never changes, so the most recent are cached.
        self._view = lru_cache(256)(lambda place: StoreView(open_place(place)))
        # A snapshot of a million chains, one of them read, takes 100 MB.
        self._snapshot = lru_cache(16)(lambda view, digest: Dataset.of(view.storage, digest))
        self.manifest_bytes = lru_cache(16)(_manifest_bytes)
        self.described = lru_cache(16)(_described)
        self._statistics = lru_cache(64)(lambda *which: column_statistics(self.table(*which)))
        # The chains to draw from do not depend on the run; another rank asks next.
        self._drawn = lru_cache(4)(lambda at, config: loader.ChainCatalog(at.index, 0, config))
        self.run_plan = lru_cache(4)(self._run_plan)  # 24 bytes a chain

    def register(
        self,
        name: str,
        uri: str,
        *,
        place: str = "",
        description: str = "",
        principal: str = "local",
        replace: bool = False,
    ) -> DatasetRow:
        """Register a dataset under a name.

        The same name and place again change its description at most; `replace` lets a name move
        to another place (of the command line). `place` is what `require_root` made of the URI.

        Raises:
            Problem: 409, the name or the place is taken; 422, the URI is not an allowed place.
        """
        place = place or canonical_place(uri)
        with self.database.write() as session:
            self.database.alone(session, "datasets")
            row = _find(session, name)
            if row is not None and row.place == place:
                if description not in ("", row.description):
                    row.description = description
                    record(session, principal, "dataset.describe", name)
                return row
            if row is not None and not replace:
                raise _taken(name)
            _require_free(session, name, place)
            if row is None:
                row = DatasetRow(name=name, folded=name.casefold(), created_at=time.time())
                row.description = description
                session.add(row)
            row.uri, row.place = uri, place
            record(session, principal, "dataset.register", name, uri=uri)
        self._places.forget(name)
        return row

    def remove(self, name: str, principal: str) -> None:
        """Delete a dataset's name and history; its files stay.

        Raises:
            Problem: 404; 409, a job is using it.
        """
        row = self.dataset(name)
        with self.database.write() as session:
            at_work = select(JobRow.id).where(
                JobRow.dataset_id == row.id, JobRow.state.in_(["running", "cancelling"])
            )
            if (job := session.scalar(at_work.limit(1))) is not None:
                message = f"job {job} is using dataset {name!r}"
                hint = "cancel the job first, or wait for its end"
                raise Problem(409, "dataset_in_use", message, next=hint)
            session.execute(delete(DatasetRow).where(DatasetRow.name == name))
            record(session, principal, "dataset.remove", name)
        self._places.forget(name)

    def dataset(self, name: str) -> DatasetRow:
        """A dataset's row (raises Problem: 404)."""
        with self.database.read() as session:
            row = _find(session, name)
        if row is None:
            raise Problem(404, "not_found", f"no dataset {name!r}", next="list: GET /v1/datasets")
        return row

    def cached_dataset(self, name: str) -> DatasetRow:
        """The same, cached for a second, or longer while the database is away."""
        return self._places.get(name, lambda: self.dataset(name))

    def datasets(
        self, after: str = "", limit: int = 1000, only: frozenset[str] | None = None
    ) -> list[DatasetRow]:
        """Datasets sorted by name, after the name `after`; `only` those, if given."""
        query = select(DatasetRow).where(DatasetRow.name > after)
        if only is not None:
            query = query.where(DatasetRow.name.in_(sorted(only)))
        with self.database.read() as session:
            return list(session.scalars(query.order_by(DatasetRow.name).limit(limit)))

    def count(self) -> int:
        """Number of datasets."""
        with self.database.read() as session:
            return session.scalar(select(func.count()).select_from(DatasetRow)) or 0

    def view(self, name: str) -> StoreView:
        """The store behind a dataset.

        Raises:
            Problem: 404, no such dataset; 503, its place cannot be reached.
        """
        place = self.cached_dataset(name).place
        try:
            return self._view(place)
        except (StoreError, OSError, ValueError) as error:
            raise away(name, error) from None

    # All of these raise Problem 404: there is no such dataset or snapshot.

    def snapshot(self, name: str, digest: str) -> Dataset:
        """A snapshot, opened once and cached."""
        opened: Dataset = self._snapshot(self.view(name), digest)
        return opened

    def table(self, name: str, digest: str, table: str) -> pa.Table:
        """The index of a snapshot's `chains`, or the table of its `assemblies` or `entries`.

        Raises:
            ShardCorrupt: the table is damaged.
        """
        snapshot = self.snapshot(name, digest)
        return snapshot.index if table == "chains" else getattr(snapshot, table).table

    def statistics(
        self, name: str, digest: str, table: str = "chains"
    ) -> dict[str, dict[str, Any]]:
        """Exact statistics of every column of a table."""
        self.cached_dataset(name)
        return self._statistics(name, digest, table)

    def _run_plan(
        self, snapshot: Dataset, config: LoaderConfig, world_size: int, seed: int
    ) -> RunPlan:
        """The plan of one run of a snapshot, cached for its next rank (raises as `RunPlan`)."""
        chains, index = self._drawn(snapshot, config), snapshot.index
        return loader.RunPlan(index, config, world_size=world_size, seed=seed, catalog=chains)

    def close(self) -> None:
        """Close everything that is held open."""
        for cache in (self.run_plan, self._drawn, self._statistics, self.described,
                     self.manifest_bytes, self._snapshot, self._view):  # fmt: skip
            cache.cache_clear()


def _manifest_bytes(snapshot: Dataset) -> bytes:
    """The bytes of a snapshot's manifest, whose digest names it."""
    return snapshot.manifest.to_bytes()


def _described(snapshot: Dataset) -> dict[str, pa.ChunkedArray]:
    """The columns of its index that describe a chain."""
    return {name: snapshot.index[name] for name in column_kinds(snapshot.index.schema)}


def _find(session: Session, name: str) -> DatasetRow | None:
    return session.scalar(select(DatasetRow).where(DatasetRow.name == name))


def _require_free(session: Session, name: str, place: str) -> None:
    """Refuse a place that equals, contains or lies in the place of another dataset.

    Rights are given by name: with two names for one place, a token for the one would reach
    the other.
    """
    for other in session.scalars(select(DatasetRow).where(DatasetRow.name != name)):
        if other.folded == name.casefold():
            raise _taken(name)
        if below(place, other.place) or below(other.place, place):
            message = "this place is that of another dataset, or is inside or around it"
            hint = "use that dataset's name, or choose a place apart from it"
            raise Problem(409, "place_taken", message, next=hint)


def _taken(name: str) -> Problem:
    message = f"dataset {name!r} exists with another URI, or a name that differs in case only"
    hint = "choose another name, or remove that one with DELETE /v1/datasets/{name}"
    return Problem(409, "name_taken", message, next=hint)


def away(name: str, error: Exception) -> Problem:
    """The problem of a dataset whose store cannot be used; its place is not shown."""
    why = error.message if isinstance(error, StoreError) else type(error).__name__
    why = error.strerror or why if isinstance(error, OSError) else why
    message = f"the store of dataset {name!r} cannot be reached: {why}"
    hint = "check the disk or bucket, then retry"
    return Problem(503, "store_unreachable", message, next=hint, headers={"Retry-After": "5"})


def snapshots_of(database: Database, dataset_id: int, view: StoreView) -> list[tuple[str, float]]:
    """Digests of a dataset's snapshots and when each was written (Unix time), newest first.

    That is the time of its manifest's file or of a ref's first move to it, whichever was earlier.
    """
    moves = select(RefMove.digest, func.min(RefMove.moved_at)).group_by(RefMove.digest)
    with database.read() as session:
        rows = session.execute(moves.where(RefMove.dataset_id == dataset_id))
        moved = {digest: float(time) for digest, time in rows}
    times = [(digest, min(time, moved.get(digest, time))) for digest, time in view.digests()]
    return sorted(times, key=lambda pair: (-pair[1], pair[0]))

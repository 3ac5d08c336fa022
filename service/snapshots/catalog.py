"""Datasets by name, and what their stores hold, kept open.

The store is the truth: refs lie there, so that a reader of the bare folder and
a reader of the service agree. The database adds names and the refs' history.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from evofeed import loader  # its names load when they are used: no start waits for them
from evofeed.assembly_record import AssemblyRecord
from evofeed.chain_record import ChainRecord
from evofeed.errors import StoreError
from evofeed.service.access.audit import record
from evofeed.service.access.places import below, canonical_place
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, JobRow
from evofeed.service.problems import Problem
from evofeed.service.snapshots.known_places import KnownPlaces
from evofeed.service.snapshots.snapshot import OpenSnapshot, ShardFile, StoreView
from evofeed.service.timings import USUAL, Timings
from evofeed.service.work import require_thread
from evofeed.store import DataCard, Dataset, Diff, card_of
from evofeed.store.inner import column_statistics, diff_indexes

if TYPE_CHECKING:
    from evofeed.loader import ChainCatalog, LoaderConfig, RunPlan

_K = TypeVar("_K")
_T = TypeVar("_T")
_MAX_PLANS = 4  # 24 bytes a chain each, twice where a run goes from one epoch to the next
_MAX_SNAPSHOTS = 32  # held open at once; the longest unused are closed
_MAX_NBYTES = 1 << 30  # of their columns made ready: a million chains have 100 MB


class Catalog:
    """The datasets of one service; safe to use from many threads.

    Args:
        database: where names are kept.
        grace: as of `KnownPlaces`.
        timings: how long a place is known, and how long a bucket may take.

    Attributes:
        places: of the datasets, as far as they are known.
    """

    def __init__(self, database: Database, grace: float = 0.0, timings: Timings = USUAL) -> None:
        self._database, self._timings = database, timings
        self.places = KnownPlaces(lambda name: self.dataset(name).uri, grace, timings.place_known)
        self._views: OrderedDict[str, StoreView] = OrderedDict()
        self._snapshots: OrderedDict[tuple[str, str], OpenSnapshot] = OrderedDict()
        self._datasets: OrderedDict[tuple[str, str], Dataset] = OrderedDict()
        self._shards: OrderedDict[tuple[str, str], ShardFile] = OrderedDict()
        # A digest says all about a snapshot, so these need no dataset in their key.
        self._statistics: OrderedDict[str, dict[str, dict[str, Any]]] = OrderedDict()
        self._cards: OrderedDict[tuple[str, str, str], DataCard] = OrderedDict()
        self._differences: OrderedDict[tuple[str, str], Diff] = OrderedDict()
        self._drawn: OrderedDict[tuple[str, LoaderConfig], ChainCatalog] = OrderedDict()
        self._plans: OrderedDict[tuple[str, LoaderConfig, int, int], RunPlan] = OrderedDict()
        self._lock = threading.Lock()

    def register(
        self,
        name: str,
        uri: str,
        *,
        description: str = "",
        principal: str = "local",
        replace: bool = False,
    ) -> DatasetRow:
        """Make a dataset known by name.

        Registering the same name and place again changes nothing. `replace` lets a
        name move to another place (only the command line may do that).

        Raises:
            Problem: 409, the name (or one that differs in case only) is taken, or the
                place is in, around or the same as that of another dataset; 422, the
                URI is no place of ours.
        """
        place = canonical_place(uri)
        with self._database.write() as session:
            self._database.alone(session, "datasets")
            row = _find(session, name)
            if row is not None and row.place == place:
                session.expunge(row)
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
            session.flush()
            session.expunge(row)
        self.places.forget(name)
        return row

    def describe(self, name: str, description: str, principal: str) -> DatasetRow:
        """Change what is said of a dataset.

        Raises:
            Problem: 404.
        """
        row = self.dataset(name)
        with self._database.write() as session:
            row = session.get_one(DatasetRow, row.id)
            row.description = description
            record(session, principal, "dataset.describe", name)
            session.flush()
            session.expunge(row)
        return row

    def remove(self, name: str, principal: str) -> str:
        """Forget a dataset's name and history; its files stay where they are: this place.

        Raises:
            Problem: 404; 409, a job is at work on it.
        """
        row = self.dataset(name)
        with self._database.write() as session:
            at_work = select(JobRow.id).where(
                JobRow.dataset_id == row.id, JobRow.state.in_(["running", "cancelling"])
            )
            if (job := session.scalar(at_work.limit(1))) is not None:
                raise Problem(
                    409,
                    "dataset_in_use",
                    f"job {job} is at work on dataset {name!r}",
                    next="cancel the job first, or wait for its end",
                )
            session.execute(delete(DatasetRow).where(DatasetRow.name == name))
            record(session, principal, "dataset.remove", name)
        self.places.forget(name)
        return row.place

    def dataset(self, name: str) -> DatasetRow:
        """A dataset's row.

        Raises:
            Problem: 404.
        """
        with self._database.read() as session:
            row = _find(session, name)
        if row is None:
            raise Problem(404, "not_found", f"no dataset {name!r}", next="list: GET /v1/datasets")
        return row

    def datasets(
        self, after: str = "", limit: int = 1000, only: frozenset[str] | None = None
    ) -> list[DatasetRow]:
        """Datasets in order of name, beginning behind `after`; `only` those, if given."""
        query = select(DatasetRow).where(DatasetRow.name > after)
        if only is not None:
            query = query.where(DatasetRow.name.in_(sorted(only)))
        with self._database.read() as session:
            return list(session.scalars(query.order_by(DatasetRow.name).limit(limit)))

    def count(self) -> int:
        """Datasets there are."""
        with self._database.read() as session:
            return session.scalar(select(func.count()).select_from(DatasetRow)) or 0

    def view(self, name: str) -> StoreView:
        """The store behind a dataset.

        Raises:
            Problem: 404, no such dataset; 503, its place cannot be reached.
        """
        uri = self.places.of(name)
        try:
            seconds = self._timings.bucket_answer
            return self._cached(self._views, uri, lambda: StoreView(uri, seconds), 256)
        except (StoreError, OSError, ValueError) as error:
            raise away(name, error) from None

    def snapshot(self, name: str, digest: str) -> OpenSnapshot:
        """A snapshot, opened once and kept.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        view = self.view(name)
        return self._cached(
            self._snapshots,
            (view.uri, digest),
            lambda: self._opened(view, digest),
            _MAX_SNAPSHOTS,
        )

    def _opened(self, view: StoreView, digest: str) -> OpenSnapshot:
        snapshot = view.open_snapshot(digest)
        with self._lock:
            used = snapshot.columns.nbytes + sum(s.columns.nbytes for s in self._snapshots.values())
            while self._snapshots and used > _MAX_NBYTES:
                used -= self._snapshots.popitem(last=False)[1].columns.nbytes
        return snapshot

    def record(self, name: str, digest: str, chain_id: str) -> ChainRecord:
        """A chain with all that is stored of it.

        Raises:
            Problem: 404, no such dataset or snapshot.
            ChainMissing: no such chain.
            StoreError: its bytes cannot be had, or are not what they were.
        """
        return self._dataset(name, digest)[chain_id]

    def assemblies(self, name: str, digest: str) -> pa.Table:
        """The table of a snapshot's complexes, empty where it has none.

        Raises:
            Problem: 404, no such dataset or snapshot.
            ShardCorrupt: the table is damaged.
        """
        return self._dataset(name, digest).assemblies.table

    def assembly(self, name: str, digest: str, assembly_id: str) -> AssemblyRecord:
        """A complex with its chains, rows to pair and coordinates; errors as `record`'s."""
        return self._dataset(name, digest).assemblies[assembly_id]

    def _dataset(self, name: str, digest: str) -> Dataset:
        view, snapshot = self.view(name), self.snapshot(name, digest)
        # Few: the places of a million chains take 100 MB.
        return self._cached(self._datasets, (view.uri, digest), lambda: view.dataset(snapshot), 4)

    def shard(self, name: str, shard: str) -> ShardFile:
        """A shard that some snapshot of the dataset lists.

        Raises:
            Problem: 404, no snapshot lists it.
        """
        view = self.view(name)
        return self._cached(
            self._shards, (view.uri, shard), lambda: view.find_shard(shard), 100_000
        )

    def statistics(self, name: str, digest: str) -> dict[str, dict[str, Any]]:
        """Exact statistics of every column of a snapshot.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        snapshot = self.snapshot(name, digest)
        return self._cached(self._statistics, digest, lambda: column_statistics(snapshot.index), 64)

    def card(self, name: str, digest: str) -> DataCard:
        """The data card of a snapshot.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        row, snapshot = self.dataset(name), self.snapshot(name, digest)
        key = (name, digest, row.description)
        return self._cached(
            self._cards,
            key,
            lambda: card_of(
                snapshot.index,
                snapshot.manifest,
                digest=digest,
                name=name,
                description=row.description,
            ),
            16,
        )

    def difference(self, name: str, before: str, after: str) -> Diff:
        """Chains that differ between two snapshots of a dataset.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        old, new = self.snapshot(name, before), self.snapshot(name, after)
        return self._cached(
            self._differences, (before, after), lambda: diff_indexes(old.index, new.index), 8
        )

    def run_plan(
        self, name: str, digest: str, config: LoaderConfig, *, world_size: int, seed: int
    ) -> RunPlan:
        """The plan of one run, kept for its next rank.

        Raises:
            Problem: 404, no such dataset or snapshot.
            LoaderError: no chain passes the filters.
            ValueError: world size and batch sizes do not fit each other.
        """
        index = self.snapshot(name, digest).index

        def make() -> RunPlan:
            # What may be drawn does not depend on the run.
            chains = self._cached(
                self._drawn,
                (digest, config),
                lambda: loader.ChainCatalog(index, 0, config),
                _MAX_PLANS,
            )
            return loader.RunPlan(index, config, world_size=world_size, seed=seed, catalog=chains)

        return self._cached(self._plans, (digest, config, world_size, seed), make, _MAX_PLANS)

    def close(self) -> None:
        """Let go of everything held open."""
        with self._lock:
            self._snapshots.clear()
            self._datasets.clear()
            self._shards.clear()
            self._views.clear()

    def _cached(
        self, cache: OrderedDict[_K, _T], key: _K, make: Callable[[], _T], limit: int
    ) -> _T:
        with self._lock:
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
        require_thread()
        made = make()  # outside the lock: a slow store holds up nobody else
        with self._lock:
            made = cache.setdefault(key, made)
            while len(cache) > limit:
                cache.popitem(last=False)
        return made


def _find(session: Session, name: str) -> DatasetRow | None:
    return session.scalar(select(DatasetRow).where(DatasetRow.name == name))


def _require_free(session: Session, name: str, place: str) -> None:
    """Refuse a place that another dataset has, or that is inside or around one of another.

    Rights are given by name: with two names for one place, a token for the one would reach
    the other.
    """
    for other in session.scalars(select(DatasetRow).where(DatasetRow.name != name)):
        if other.folded == name.casefold():
            raise _taken(name)
        if below(place, other.place) or below(other.place, place):
            raise Problem(
                409,
                "place_taken",
                "this place is that of another dataset, or is inside or around it",
                next="use that dataset's name, or choose a place apart from it",
            )


def _taken(name: str) -> Problem:
    return Problem(
        409,
        "name_taken",
        f"dataset {name!r} exists with another URI, or a name that differs in case only",
        next="choose another name, or remove that one with DELETE /v1/datasets/{name}",
    )


def away(name: str, error: Exception) -> Problem:
    """The problem of a dataset whose store cannot be used; its place is not shown."""
    why = error.message if isinstance(error, StoreError) else type(error).__name__
    why = error.strerror or why if isinstance(error, OSError) else why
    return Problem(
        503,
        "store_unreachable",
        f"the store of dataset {name!r} cannot be reached: {why}",
        next="check the disk or bucket, then retry",
        headers={"Retry-After": "5"},
    )

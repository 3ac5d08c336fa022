"""Datasets by name, and what their stores hold, kept open.

The store is the truth: refs lie there, so that a reader of the bare folder and
a reader of the service agree. The database adds names and the refs' history.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from evofeed import loader  # its names load when they are used: no start waits for them
from evofeed.base.errors import StoreError
from evofeed.base.within import below
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.service.access.places import canonical_place, open_place
from evofeed.service.database.database import Database
from evofeed.service.database.tables import DatasetRow, JobRow, record
from evofeed.service.problems import Problem
from evofeed.service.remembered import Kept, Remembered
from evofeed.service.settings import USUAL, Timings
from evofeed.service.snapshots.snapshot import OpenSnapshot, ShardFile, StoreView
from evofeed.store import Dataset
from evofeed.store.inner import column_statistics

if TYPE_CHECKING:
    from evofeed.loader import ChainCatalog, LoaderConfig, RunPlan


class Catalog:
    """The datasets of one service; safe to use from many threads.

    Args:
        database: where names are kept.
        grace: seconds for which a dataset's place is known while the database is away.
        timings: how long a place is trusted.
    """

    def __init__(self, database: Database, grace: float = 0.0, timings: Timings = USUAL) -> None:
        self._database = database
        self._places = Remembered[str, DatasetRow](timings.trust, grace)
        self._views = Kept[str, StoreView](256)
        self._snapshots = Kept[tuple[str, str], OpenSnapshot](32)
        self._datasets = Kept[tuple[str, str], Dataset](4)  # places of a million chains: 100 MB
        self._shards = Kept[tuple[str, str], ShardFile](100_000)
        # A digest says all about a snapshot, so these need no dataset in their key.
        self._statistics = Kept[str, dict[str, dict[str, Any]]](64)
        self._drawn: Kept[tuple[str, LoaderConfig], ChainCatalog] = Kept(4)
        self._plans: Kept[tuple[str, LoaderConfig, int, int], RunPlan] = Kept(4)  # 24 bytes a chain

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
        """Make a dataset known by name.

        Registering the same name and place again changes its description at most. `replace` lets
        a name move to another place (only the command line may do that). `place` is what
        `require_root` made of the URI.

        Raises:
            Problem: 409, the name (or one that differs in case only) is taken, or the
                place is in, around or the same as that of another dataset; 422, the
                URI is no place of ours.
        """
        place = place or canonical_place(uri)
        with self._database.write() as session:
            self._database.alone(session, "datasets")
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
        """Forget a dataset's name and history; its files stay where they are.

        Raises:
            Problem: 404; 409, a job is at work on it.
        """
        row = self.dataset(name)
        with self._database.write() as session:
            at_work = select(JobRow.id).where(
                JobRow.dataset_id == row.id, JobRow.state.in_(["running", "cancelling"])
            )
            if (job := session.scalar(at_work.limit(1))) is not None:
                what = f"job {job} is at work on dataset {name!r}"
                hint = "cancel the job first, or wait for its end"
                raise Problem(409, "dataset_in_use", what, next=hint)
            session.execute(delete(DatasetRow).where(DatasetRow.name == name))
            record(session, principal, "dataset.remove", name)
        self._places.forget(name)

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

    def known(self, name: str) -> DatasetRow:
        """The same as it was a moment ago, or lately if the database is away."""
        return self._places.get(name, lambda: self.dataset(name))

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
        place = self.known(name).place
        try:
            return self._views.get(place, lambda: StoreView(open_place(place)))
        except (StoreError, OSError, ValueError) as error:
            raise away(name, error) from None

    def snapshot(self, name: str, digest: str) -> OpenSnapshot:
        """A snapshot, opened once and kept.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        view = self.view(name)
        return self._snapshots.get((view.uri, digest), lambda: view.open_snapshot(digest))

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
        return self._datasets.get((view.uri, digest), lambda: view.dataset(snapshot))

    def shard(self, name: str, shard: str) -> ShardFile:
        """A shard that some snapshot of the dataset lists.

        Raises:
            Problem: 404, no snapshot lists it.
        """
        view = self.view(name)
        return self._shards.get((view.uri, shard), lambda: view.find_shard(shard))

    def statistics(self, name: str, digest: str) -> dict[str, dict[str, Any]]:
        """Exact statistics of every column of a snapshot.

        Raises:
            Problem: 404, no such dataset or snapshot.
        """
        snapshot = self.snapshot(name, digest)
        return self._statistics.get(digest, lambda: column_statistics(snapshot.index))

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
            chains = self._drawn.get(
                (digest, config), lambda: loader.ChainCatalog(index, 0, config)
            )
            return loader.RunPlan(index, config, world_size=world_size, seed=seed, catalog=chains)

        return self._plans.get((digest, config, world_size, seed), make)

    def close(self) -> None:
        """Let go of everything held open."""
        for kept in (self._snapshots, self._datasets, self._shards, self._views):
            kept.clear()


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
            what = "this place is that of another dataset, or is inside or around it"
            hint = "use that dataset's name, or choose a place apart from it"
            raise Problem(409, "place_taken", what, next=hint)


def _taken(name: str) -> Problem:
    what = f"dataset {name!r} exists with another URI, or a name that differs in case only"
    hint = "choose another name, or remove that one with DELETE /v1/datasets/{name}"
    return Problem(409, "name_taken", what, next=hint)


def away(name: str, error: Exception) -> Problem:
    """The problem of a dataset whose store cannot be used; its place is not shown."""
    why = error.message if isinstance(error, StoreError) else type(error).__name__
    why = error.strerror or why if isinstance(error, OSError) else why
    what = f"the store of dataset {name!r} cannot be reached: {why}"
    hint = "check the disk or bucket, then retry"
    return Problem(503, "store_unreachable", what, next=hint, headers={"Retry-After": "5"})

"""What a job has done, in a database that only its driver writes.

Three tables behind SQLAlchemy, in a SQLite file beside the dataset or in the
service's PostgreSQL: jobs, units (todo, leased, done) and the chains that
made trouble. Every change is one transaction, so a driver may die at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from evofeed.base.errors import JobError
from evofeed.featurize.job.tables import (
    CHAINS,
    DONE,
    FAILED,
    JOBS,
    LEASED,
    METADATA,
    PUBLISHED,
    RUNNING,
    TODO,
    UNITS,
    JobRow,
)

if TYPE_CHECKING:
    from evofeed.featurize.job.units import Plan
    from evofeed.featurize.job.work import UnitResult


class Ledger:
    """The database of jobs at `url` (SQLAlchemy's, or the path of a SQLite file).

    Raises:
        JobError: it cannot be opened.
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else f"sqlite:///{url}"
        self.url = self.url.replace("postgresql://", "postgresql+psycopg://", 1)
        if self.url.startswith("sqlite:///"):
            Path(self.url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        # For messages: a SQLite file's path, another database without its password.
        self.place = self.url.rpartition("@")[2].removeprefix("sqlite:///")
        try:
            self.engine: Engine = _engine(self.url)
            METADATA.create_all(self.engine)
        except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
            reason = str(error).splitlines()[0]
            raise JobError(
                f"ledger cannot be opened: {reason}. Published snapshots do not need it: move it "
                "away and run again, then everything that is not published is done anew",
                path=self.place,
            ) from error
        sa.event.listen(self.engine, "handle_error", self._fail)

    def _fail(self, context: sa.ExceptionContext) -> None:
        """A full disk, a damaged file, a database that went away: one line says so."""
        error = context.original_exception
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise JobError(
            f"ledger: {reason}; fix that and try again, what is done is kept. A damaged ledger may "
            "be moved away: published snapshots do not need it, all else is done anew",
            path=self.place,
        ) from error

    def close(self) -> None:
        """Give the connections back."""
        self.engine.dispose()

    # reading

    def jobs(self) -> list[JobRow]:
        """All jobs, newest first."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.select(JOBS).order_by(JOBS.c.created_at.desc()))
            return [JobRow(**row) for row in rows.mappings()]

    def job(self, job_id: str) -> JobRow:
        """One job, by its id or the beginning of it.

        Raises:
            JobError: none or several begin so.
        """
        found = [job for job in self.jobs() if job.job_id.startswith(job_id)]
        if len(found) != 1:
            known = ", ".join(job.job_id[:12] for job in found or self.jobs()) or "none"
            what = "ambiguous" if found else "unknown"
            raise JobError(f"{what} job {job_id!r}; the ledger has {known}", path=self.place)
        return found[0]

    def counts(self, job_id: str) -> dict[str, int]:
        """Units by state, chains done and broken, cost done and in all."""
        good = sa.func.coalesce(sa.func.sum(UNITS.c.num_chains), 0)
        cost = sa.func.coalesce(sa.func.sum(UNITS.c.cost), 0)
        query = (
            sa.select(UNITS.c.state, sa.func.count(), good, cost)
            .where(UNITS.c.job_id == job_id)
            .group_by(UNITS.c.state)
        )
        dead = sa.select(sa.func.count()).where(CHAINS.c.job_id == job_id, CHAINS.c.dead)
        counts: dict[str, int] = {f"units_{state}": 0 for state in (TODO, LEASED, DONE)}
        counts |= {"chains_good": 0, "cost_done": 0, "cost": 0}
        with self.engine.connect() as connection:
            for state, units, chains, units_cost in connection.execute(query):
                counts[f"units_{state}"] = units
                counts["chains_good"] += chains
                counts["cost"] += int(units_cost)
                counts["cost_done"] += int(units_cost) if state == DONE else 0
            counts["chains_broken"] = connection.execute(dead).scalar_one()
        return counts

    def units(self, job_id: str, state: str | None = None) -> list[Mapping[str, Any]]:
        """Units in the order of the plan, all or those in one state."""
        query = sa.select(UNITS).where(UNITS.c.job_id == job_id).order_by(UNITS.c.ordinal)
        if state is not None:
            query = query.where(UNITS.c.state == state)
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def chains(
        self, job_id: str, dead: bool | None = True, unit_id: str = ""
    ) -> list[dict[str, Any]]:
        """Chains that made trouble, of one unit or all; `dead=False` only suspects, None both."""
        query = sa.select(CHAINS).where(CHAINS.c.job_id == job_id).order_by(CHAINS.c.chain_id)
        if unit_id:
            query = query.where(CHAINS.c.unit_id == unit_id)
        if dead is not None:
            query = query.where(CHAINS.c.dead == dead)
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # the driver's writes

    def begin(
        self, job_id: str, plan: Plan, where: Mapping[str, Any], parent: str | None
    ) -> JobRow:
        """Enter a job and its units, or take it up where an earlier driver left it.

        Units that another job has done with the same inputs and settings count as done.
        """
        now = time.time()
        with self.engine.begin() as connection:
            known = connection.execute(
                sa.select(JOBS.c.state).where(JOBS.c.job_id == job_id)
            ).scalar()
            if known is None:
                job: dict[str, Any] = {"state": RUNNING, "message": ""}
                job |= {"cancel_requested": False}
                job |= {"job_id": job_id, "num_chains": len(plan.sources), "parent": parent}
                times = {"created_at": now, "updated_at": now}
                connection.execute(sa.insert(JOBS).values(**job, **where, **times))
                _insert_units(connection, job_id, plan)
            else:
                _update_job(connection, job_id, **where)
                changed = {"state": RUNNING, "cancel_requested": False}
                if known == PUBLISHED:  # on top of whatever came after it
                    changed = {"parent": parent}
                _update_job(connection, job_id, **changed)
                _release(connection, job_id)
        return self.job(job_id)

    def lease(self, job_id: str, unit_id: str) -> None:
        """A unit is in work from now on."""
        with self.engine.begin() as connection:
            connection.execute(
                _unit(job_id, unit_id).values(
                    state=LEASED, attempts=UNITS.c.attempts + 1, leased_at=time.time()
                )
            )

    def give_back(self, job_id: str, unit_id: str, *, acquit: bool = False) -> None:
        """A unit was lost and is to be done again; `acquit`: with its broken chains."""
        with self.engine.begin() as connection:
            if acquit:
                unit = (CHAINS.c.job_id == job_id) & (CHAINS.c.unit_id == unit_id)
                connection.execute(sa.delete(CHAINS).where(unit))
            values = {"state": TODO, "leased_at": None, "num_chains": 0}
            connection.execute(_unit(job_id, unit_id).values(**values))

    def finish(self, job_id: str, result: UnitResult) -> None:
        """A unit is done: its shard, notes and broken chains, in one transaction."""
        with self.engine.begin() as connection:
            values: dict[str, Any] = {"state": DONE, "leased_at": None, "shard": result.shard}
            values |= {"num_chains": result.num_chains, "notes": result.notes}
            connection.execute(_unit(job_id, result.unit_id).values(**values))
            unit = (CHAINS.c.job_id == job_id) & (CHAINS.c.unit_id == result.unit_id)
            connection.execute(sa.delete(CHAINS).where(unit, sa.not_(CHAINS.c.dead)))  # acquitted
            for failure in result.failures:
                _put_chain(connection, job_id, result.unit_id, failure, dead=True)
            _update_job(connection, job_id)

    def strike(self, job_id: str, unit_id: str, failure: Mapping[str, Any], limit: int) -> bool:
        """A chain took its worker down; True if that was its last chance (`limit` strikes)."""
        with self.engine.begin() as connection:
            where = (CHAINS.c.job_id == job_id) & (CHAINS.c.chain_id == failure["chain_id"])
            before = connection.execute(sa.select(CHAINS.c.strikes).where(where)).scalar() or 0
            dead = before + 1 >= limit
            _put_chain(connection, job_id, unit_id, failure, dead=dead, strikes=before + 1)
            connection.execute(_unit(job_id, unit_id).values(state=TODO, leased_at=None))
        return dead

    def set_job(self, job_id: str, **values: Any) -> None:
        """Change fields of a job."""
        with self.engine.begin() as connection:
            _update_job(connection, job_id, **values)

    # asked for by others, heeded by the driver

    def request_cancel(self, job_id: str) -> None:
        """Ask a running job to stop; what is done stays done."""
        self.set_job(job_id, cancel_requested=True)

    def retry(self, job_id: str) -> int:
        """Give dead chains another chance: their units are to be done again. Returns how many."""
        with self.engine.begin() as connection:
            units = sa.select(CHAINS.c.unit_id).where(CHAINS.c.job_id == job_id, CHAINS.c.dead)
            connection.execute(
                sa.update(UNITS)
                .where(UNITS.c.job_id == job_id, UNITS.c.unit_id.in_(units))
                .values(state=TODO, attempts=0, shard=None, num_chains=0, notes=None)
            )
            gone = connection.execute(sa.delete(CHAINS).where(CHAINS.c.job_id == job_id))
            _update_job(connection, job_id, state=FAILED, message="to be retried")
        return gone.rowcount


def _engine(url: str) -> Engine:
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def _configure(connection: Any, _: object) -> None:
            # No WAL: the ledger may lie on a network disk, where WAL is not safe.
            connection.execute("PRAGMA busy_timeout = 60000")
            connection.execute("PRAGMA synchronous = FULL")

    return engine


def _unit(job_id: str, unit_id: str) -> sa.Update:
    return sa.update(UNITS).where(UNITS.c.job_id == job_id, UNITS.c.unit_id == unit_id)


def _update_job(connection: Connection, job_id: str, **values: Any) -> None:
    change = sa.update(JOBS).where(JOBS.c.job_id == job_id)
    connection.execute(change.values(updated_at=time.time(), **values))


def _put_chain(
    connection: Connection,
    job_id: str,
    unit_id: str,
    failure: Mapping[str, Any],
    *,
    dead: bool,
    strikes: int = 0,
) -> None:
    where = (CHAINS.c.job_id == job_id) & (CHAINS.c.chain_id == failure["chain_id"])
    connection.execute(sa.delete(CHAINS).where(where))
    values = {name: failure[name] for name in ("chain_id", "type", "message", "path", "line")}
    values |= {"job_id": job_id, "unit_id": unit_id, "dead": dead, "strikes": strikes}
    connection.execute(sa.insert(CHAINS).values(**values))


def _release(connection: Connection, job_id: str) -> None:
    """What a dead driver had in work is to be done again."""
    leased = sa.update(UNITS).where(UNITS.c.job_id == job_id, UNITS.c.state == LEASED)
    connection.execute(leased.values(state=TODO, leased_at=None))


def _insert_units(connection: Connection, job_id: str, plan: Plan) -> None:
    rows = [
        {
            "job_id": job_id,
            "unit_id": unit.unit_id,
            "ordinal": ordinal,
            "chain_ids": list(unit.chain_ids),
            "cost": unit.cost,
            "state": TODO,
            "attempts": 0,
            "num_chains": 0,
        }
        for ordinal, unit in enumerate(plan.units)
    ]
    connection.execute(sa.insert(UNITS), rows)
    _adopt(connection, job_id)


def _adopt(connection: Connection, job_id: str) -> None:
    """Take over units that an earlier job has done without a broken chain.

    Their shards may be elsewhere: a ledger can serve several datasets, and one dataset may be
    written in several ways or have been moved. The driver does again what is not there.
    """
    mine = sa.select(UNITS.c.unit_id).where(UNITS.c.job_id == job_id)
    dataset = sa.select(JOBS.c.dataset_uri).where(JOBS.c.job_id == job_id).scalar_subquery()
    same = (CHAINS.c.job_id == UNITS.c.job_id) & (CHAINS.c.unit_id == UNITS.c.unit_id)
    done = (
        sa.select(UNITS)
        .join(JOBS, JOBS.c.job_id == UNITS.c.job_id)
        .where(UNITS.c.state == DONE, UNITS.c.job_id != job_id, UNITS.c.unit_id.in_(mine))
        .where(~sa.exists().where(same, CHAINS.c.dead))
        .order_by(JOBS.c.dataset_uri == dataset, JOBS.c.created_at)  # the last one stays
    )
    for row in connection.execute(done).mappings():
        values = {"state": DONE, "shard": row["shard"], "notes": row["notes"]}
        values["num_chains"] = row["num_chains"]
        connection.execute(_unit(job_id, row["unit_id"]).values(**values))

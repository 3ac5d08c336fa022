"""The ledger: state of jobs, units and failed chains, in a database that only drivers write.

Three tables behind SQLAlchemy, in a SQLite file in the dataset or in the service's
PostgreSQL: jobs, units (todo, leased, done), and chains that failed or are suspects.
Every change is one transaction, so a driver may die at any moment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from evofeed.base.errors import JobError
from evofeed.base.files import advice
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
    Job,
)

if TYPE_CHECKING:
    from evofeed.featurize.job.units import Plan
    from evofeed.featurize.job.work import UnitResult

_UNDONE = {"state": TODO, "leased_at": None}


class Ledger:
    """The database of jobs at `url` (SQLAlchemy's, or the path of a SQLite file).

    Raises:
        JobError: it cannot be opened.
    """

    def __init__(self, url: str) -> None:
        self.url = url if "://" in url else f"sqlite:///{url}"
        self.url = self.url.replace("postgresql://", "postgresql+psycopg://", 1)
        # For messages: a SQLite file's path, another database without its password.
        self.location = self.url.rpartition("@")[2].removeprefix("sqlite:///")
        try:
            self.engine = sa.create_engine(self.url)
            if self.engine.dialect.name == "sqlite":
                Path(self.engine.url.database or "").parent.mkdir(parents=True, exist_ok=True)
                sa.event.listen(self.engine, "connect", _configure_sqlite)
            METADATA.create_all(self.engine)
        except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
            reason = _first_line(getattr(error, "orig", None) or error)
            raise JobError(
                f"ledger cannot be opened: {reason}. Published snapshots do not need it: move it "
                "away and run again, then everything that is not published is done again",
                path=self.location,
            ) from error
        sa.event.listen(self.engine, "handle_error", self._fail)

    def _fail(self, context: sa.ExceptionContext) -> None:
        """Raise a JobError for a full disk, a damaged file or a lost database."""
        error = context.original_exception
        if not isinstance(error, Exception):  # an interruption
            return
        raise JobError(
            f"ledger: {_first_line(error)}; fix that and try again, finished work is kept. A "
            "damaged ledger may be moved away: published snapshots do not need it, everything "
            "else is done again",
            path=self.location,
        ) from error

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def _rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def _write(self, *changes: sa.Executable) -> None:
        """Execute all changes in one transaction."""
        with self.engine.begin() as connection:
            for change in changes:
                connection.execute(change)

    # reading

    def jobs(self) -> list[Job]:
        """All jobs, newest first."""
        with self.engine.connect() as connection:
            newest_first = sa.select(JOBS).order_by(JOBS.c.created_at.desc())
            return list(connection.execute(newest_first))

    def job(self, job_id: str) -> Job:
        """One job, by its id or a prefix of it.

        Raises:
            JobError: no job or several have this prefix.
        """
        jobs = self.jobs()
        matches = [job for job in jobs if job.job_id.startswith(job_id)]
        if len(matches) != 1:
            ids = ", ".join(job.job_id[:12] for job in matches or jobs) or "none"
            problem = "ambiguous" if matches else "unknown"
            raise JobError(f"{problem} job {job_id!r}; the ledger has {ids}", path=self.location)
        return matches[0]

    def counts(self, job_id: str) -> dict[str, int]:
        """Units by state, chains done and broken, cost done and total."""
        columns = (sa.func.count(), sa.func.sum(UNITS.c.num_chains), sa.func.sum(UNITS.c.cost))
        query = sa.select(UNITS.c.state, *columns).where(UNITS.c.job_id == job_id)
        dead = sa.select(sa.func.count()).where(CHAINS.c.job_id == job_id, CHAINS.c.dead)
        with self.engine.connect() as connection:
            rows = connection.execute(query.group_by(UNITS.c.state))
            sums = {state: list(map(int, of_state)) for state, *of_state in rows}
            chains_broken = connection.execute(dead).scalar_one()
        counts = {f"units_{s}": sums.get(s, [0])[0] for s in (TODO, LEASED, DONE)}
        counts["chains_good"] = sum(chains for _, chains, _ in sums.values())
        counts["chains_broken"] = chains_broken
        counts["cost"] = sum(cost for *_, cost in sums.values())
        counts["cost_done"] = sums[DONE][2] if DONE in sums else 0
        return counts

    def units(self, job_id: str, state: str | None = None) -> list[dict[str, Any]]:
        """Units in the order of the plan, all or those in one state."""
        query = sa.select(UNITS).where(UNITS.c.job_id == job_id).order_by(UNITS.c.ordinal)
        return self._rows(query if state is None else query.where(UNITS.c.state == state))

    def chains(
        self, job_id: str, dead: bool | None = True, unit_id: str = ""
    ) -> list[dict[str, Any]]:
        """Failed chains of one unit or all; `dead=False`: suspects instead, None: both."""
        query = sa.select(CHAINS).where(_chains(job_id, unit_id)).order_by(CHAINS.c.chain_id)
        return self._rows(query if dead is None else query.where(CHAINS.c.dead == dead))

    # the driver's writes

    def begin(self, job_id: str, plan: Plan, request: Mapping[str, Any], parent: str | None) -> Job:
        """Insert a job and its units, or continue it where an earlier driver stopped.

        `request` has the `input_uri`, `dataset_uri` and `arguments`. Units that another job has
        done with the same inputs and settings count as done.
        """
        now = time.time()
        with self.engine.begin() as connection:
            query = sa.select(JOBS.c.state).where(JOBS.c.job_id == job_id)
            if (state := connection.execute(query).scalar()) is None:
                values = {"state": RUNNING, "num_chains": len(plan.sources), "parent": parent}
                times = {"created_at": now, "updated_at": now}
                job = sa.insert(JOBS).values(job_id=job_id, **request, **values, **times)
                connection.execute(job)
                units = [
                    {
                        "job_id": job_id,
                        "unit_id": unit.unit_id,
                        "ordinal": ordinal,
                        "chain_ids": list(unit.chain_ids),
                        "cost": unit.cost,
                        "state": TODO,
                    }
                    for ordinal, unit in enumerate(plan.units)
                ]
                connection.execute(sa.insert(UNITS), units)
                _adopt(connection, job_id)
            else:
                values = {"state": RUNNING, "cancel_requested": False}
                if state == PUBLISHED:  # on top of later snapshots
                    values = {"parent": parent}
                connection.execute(_change_job(job_id, **request, **values))
                leased = UNITS.c.state == LEASED  # by a driver that is dead
                connection.execute(_change_units(job_id, leased, **_UNDONE))
        return self.job(job_id)

    def lease(self, job_id: str, unit_id: str) -> None:
        """Mark a unit as leased to a worker."""
        values = {"state": LEASED, "attempts": UNITS.c.attempts + 1, "leased_at": time.time()}
        self._write(_change_units(job_id, UNITS.c.unit_id == unit_id, **values))

    def requeue(self, job_id: str, unit_id: str, *, forget_broken: bool = False) -> None:
        """Mark a unit as to do again; `forget_broken`: its broken chains too."""
        unit = _change_units(job_id, UNITS.c.unit_id == unit_id, **_UNDONE, num_chains=0)
        chains = [sa.delete(CHAINS).where(_chains(job_id, unit_id))] if forget_broken else []
        self._write(unit, *chains)

    def finish(self, job_id: str, result: UnitResult) -> None:
        """Mark a unit as done, with its shard, notes and broken chains, in one transaction."""
        values = {name: getattr(result, name) for name in ("shard", "num_chains", "notes")}
        suspects = _chains(job_id, result.unit_id) & ~CHAINS.c.dead
        self._write(
            _change_units(
                job_id, UNITS.c.unit_id == result.unit_id, state=DONE, leased_at=None, **values
            ),
            sa.delete(CHAINS).where(suspects),  # cleared
            *(
                change
                for failure in result.failures
                for change in _put_chain(job_id, result.unit_id, failure, dead=True)
            ),
            _change_job(job_id),
        )

    def strike(self, job_id: str, unit_id: str, failure: Mapping[str, Any], limit: int) -> bool:
        """Count a killed worker against a chain; True if it is dead now (`limit` strikes)."""
        chains = self.chains(job_id, dead=None, unit_id=unit_id)
        before = [c["strikes"] for c in chains if c["chain_id"] == failure["chain_id"]]
        strikes: int = 1 + sum(before)
        dead = strikes >= limit
        self._write(
            *_put_chain(job_id, unit_id, failure, dead=dead, strikes=strikes),
            _change_units(job_id, UNITS.c.unit_id == unit_id, **_UNDONE),
        )
        return dead

    def set_job(self, job_id: str, **values: Any) -> None:
        """Change fields of a job."""
        self._write(_change_job(job_id, **values))

    # requests of other processes to the driver

    def request_cancel(self, job_id: str) -> None:
        """Ask a running job to stop; finished units are kept."""
        self.set_job(job_id, cancel_requested=True)

    def retry(self, job_id: str) -> None:
        """Mark the units of dead chains as to do again, in one transaction."""
        with_dead = sa.select(CHAINS.c.unit_id).where(_chains(job_id), CHAINS.c.dead)
        self._write(
            _change_units(job_id, UNITS.c.unit_id.in_(with_dead), **_UNDONE, num_chains=0),
            sa.delete(CHAINS).where(_chains(job_id)),  # suspects too
            _change_job(job_id, state=FAILED, message="to be retried"),
        )


def _first_line(error: BaseException) -> str:
    """The first line of an error; with advice if the disk of the ledger's file is full."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    full = getattr(error, "sqlite_errorname", "") in ("SQLITE_FULL", "SQLITE_IOERR_WRITE")
    return f"{line}: {advice(error)}" if full else line


def _configure_sqlite(connection: Any, _: object) -> None:
    # No WAL: the ledger may lie on a network disk, where WAL is not safe.
    connection.execute("PRAGMA busy_timeout = 60000")
    connection.execute("PRAGMA synchronous = FULL")


def _change_job(job_id: str, **values: Any) -> sa.Update:
    return sa.update(JOBS).where(JOBS.c.job_id == job_id).values(updated_at=time.time(), **values)


def _change_units(job_id: str, which: sa.ColumnElement[bool], **values: Any) -> sa.Update:
    return sa.update(UNITS).where(UNITS.c.job_id == job_id, which).values(**values)


def _chains(job_id: str, unit_id: str = "") -> sa.ColumnElement[bool]:
    """The chains of a job, or of one of its units."""
    of_job = CHAINS.c.job_id == job_id
    return of_job & (CHAINS.c.unit_id == unit_id) if unit_id else of_job


def _put_chain(
    job_id: str, unit_id: str, failure: Mapping[str, Any], *, dead: bool, strikes: int = 0
) -> tuple[sa.Delete, sa.Insert]:
    values = {name: failure[name] for name in ("chain_id", "type", "message", "path", "line")}
    before = _chains(job_id) & (CHAINS.c.chain_id == failure["chain_id"])
    chain = sa.insert(CHAINS).values(
        job_id=job_id, unit_id=unit_id, dead=dead, strikes=strikes, **values
    )
    return sa.delete(CHAINS).where(before), chain


def _adopt(connection: sa.Connection, job_id: str) -> None:
    """Copy the results of units that an earlier job has done without a broken chain.

    Their shards may be elsewhere: a ledger can serve several datasets, and one dataset may be
    written in several ways or have been moved. The driver requeues units with missing shards.
    """
    unit_ids = sa.select(UNITS.c.unit_id).where(UNITS.c.job_id == job_id)
    dataset = sa.select(JOBS.c.dataset_uri).where(JOBS.c.job_id == job_id).scalar_subquery()
    same_unit = (CHAINS.c.job_id == UNITS.c.job_id) & (CHAINS.c.unit_id == UNITS.c.unit_id)
    done = (
        sa.select(UNITS)
        .join(JOBS, JOBS.c.job_id == UNITS.c.job_id)
        .where(UNITS.c.state == DONE, UNITS.c.job_id != job_id, UNITS.c.unit_id.in_(unit_ids))
        .where(~sa.exists().where(same_unit, CHAINS.c.dead))
        .order_by(JOBS.c.dataset_uri == dataset, JOBS.c.created_at)  # the last update wins
    )
    for row in connection.execute(done).mappings():
        values = {name: row[name] for name in ("state", "shard", "notes", "num_chains")}
        connection.execute(_change_units(job_id, UNITS.c.unit_id == row["unit_id"], **values))

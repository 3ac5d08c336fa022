"""A job of chains or of entries in the ledger: driven by one process, with progress and report."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from evofeed.base.errors import DatasetMissing, JobError
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import JobProgress, JobReport
from evofeed.featurize.job.dispatch import Dispatch
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import JobOptions, report_path
from evofeed.featurize.job.tables import Job
from evofeed.featurize.job.units import Plan
from evofeed.featurize.job.work import UnitResult
from evofeed.store import Snapshot
from evofeed.store.inner import Lease, hold, open_storage, read_ref, wait_for_none

Items = list[dict[str, Any]]
Progress = Callable[[JobProgress], None]
_PATIENCE = 30.0  # seconds to wait for a garbage collection to end
_LEFT_OUT = ("NoProtein", "UnusedInput")
"""Errors that do not count as broken: inputs without a protein, and files that no chain uses."""


@contextlib.contextmanager
def job_lease(dataset_uri: str, job_id: str) -> Iterator[Lease]:
    """Hold a lease that keeps garbage collection from shards that only the ledger lists."""
    storage = open_storage(dataset_uri)
    with hold(storage, "job", job_id[:16]) as lease:
        if collections := wait_for_none(storage, "gc", _PATIENCE):
            name, until = collections.popitem()
            raise JobError(
                f"garbage is being collected in this dataset: run it again when that is over; if "
                f"it died, remove leases/gc-{name} or wait {until - time.time():.0f} s",
                path=dataset_uri,
            )
        yield lease


def current_snapshot(dataset_uri: str, ref: str) -> str | None:
    """The snapshot that a ref points at, None if the ref does not exist yet."""
    try:
        return read_ref(open_storage(dataset_uri), ref).digest
    except DatasetMissing:
        return None


class LedgerJob(Dispatch):
    """A job of chains or entries in the ledger, continued from its recorded state to its end."""

    options: JobOptions

    def begin(self, ledger: Ledger, job: Job, plan: Plan, unusable: Items) -> None:
        """Attach a job; `unusable` are inputs that could not be read as items.

        Done units whose shards are lost or whose templates changed are requeued.
        """
        self.job, self.num_items, self.unusable = job, len(plan.sources), unusable
        self.attach(ledger, job.job_id, plan.units, self.options)
        for unit_id in {*self._lost_shards(), *self.outdated_units()}:
            ledger.requeue(job.job_id, unit_id)
        self._started_at, self._initial_counts = time.monotonic(), ledger.counts(job.job_id)

    @abc.abstractmethod
    def outdated_units(self) -> dict[str, str]:
        """Units whose template files changed or were added since, each with one folder of these."""

    def done_units(self) -> Items:
        """Rows of the ledger for units that are done."""
        return self.ledger.units(self.job_id, states.DONE)

    def done_shards(self) -> Items:
        """Shards of units that are done: `ShardEntry.to_dict()`, and keys that the kind of job
        adds, such as the `templates` that were read (`stored_templates`)."""
        return [unit["shard"] for unit in self.done_units() if unit["shard"]]

    def _lost_shards(self) -> list[str]:
        """Done units whose shards are missing (deleted, truncated or collected as garbage)."""
        expected = {
            unit["unit_id"]: {
                (shard["name"], shard["nbytes"])
                for shard in (unit["shard"], unit["shard"].get("molecules"))
                if shard
            }
            for unit in self.done_units()
            if unit["shard"]
        }
        files = open_storage(self.job.dataset_uri).files("shards/") if expected else ()
        existing = {(item.key.removeprefix("shards/"), item.nbytes) for item in files}
        return [unit_id for unit_id, shards in expected.items() if not shards <= existing]

    @contextlib.contextmanager
    def failures_recorded(self) -> Iterator[None]:
        """Record an interruption or an error of the `with` block in the ledger."""
        try:
            yield
        except KeyboardInterrupt:
            self.end(states.CANCELLED, "interrupted; run it again to continue")
            raise
        except Exception as error:
            self.ledger.set_job(self.job_id, state=states.FAILED, message=str(error))
            raise

    def record_output(self, output: UnitResult, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Record a unit's shard in the ledger, unless it is a trial's, of some items only."""
        if not is_trial:
            self.ledger.finish(self.job_id, output)
        return is_trial

    def missing(self) -> tuple[Items, Items]:
        """Items that are not in the snapshot, with their errors: broken ones, and omitted ones."""
        columns = ("chain_id", "type", "message", "path", "line")
        dead = [{name: row[name] for name in columns} for row in self.ledger.chains(self.job_id)]
        failures = [*self.unusable, *dead]
        broken = [item for item in failures if item["type"] not in _LEFT_OUT]
        return broken, [item for item in failures if item["type"] in _LEFT_OUT]

    def notes(self) -> dict[str, list[str]]:
        """Notes on what was omitted from good items, by item id."""
        units = self.done_units()
        return dict(sorted((c, n) for unit in units for c, n in (unit["notes"] or {}).items()))

    def current_progress(self) -> JobProgress:
        """State and progress of the job."""
        counts, seconds = self.ledger.counts(self.job_id), time.monotonic() - self._started_at
        cost_here = counts["cost_done"] - self._initial_counts["cost_done"]
        cost_left = counts["cost"] - counts["cost_done"]
        return JobProgress(
            num_chains=self.num_items,
            good=counts["chains_good"],
            broken=counts["chains_broken"],
            suspects=len(self.ledger.chains(self.job_id, dead=False)),
            share=counts["cost_done"] / max(counts["cost"], 1),
            chains_per_second=self._rate(counts),
            seconds_left=seconds * cost_left / cost_here if cost_here > 0 else None,
        )

    def _rate(self, counts: dict[str, int]) -> float:
        """Items per second of this run."""
        names = ("chains_good", "chains_broken")
        done = sum(counts[name] - self._initial_counts[name] for name in names)
        return done / max(time.monotonic() - self._started_at, 1e-9)

    def end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        """Record the job's final state in the ledger, and write its report."""
        digest = {"snapshot": snapshot.digest} if snapshot else {}
        self.ledger.set_job(self.job_id, state=state, message=message, **digest)
        counts, (broken, left_out) = self.ledger.counts(self.job_id), self.missing()
        shards = snapshot.manifest.shards if snapshot else ()
        report = self.complete(
            JobReport(
                job_id=self.job_id,
                state=state,
                message=message,
                input_uri=self.job.input_uri,
                dataset_uri=self.job.dataset_uri,
                ref=self.options.ref,
                snapshot=snapshot.digest if snapshot else None,
                num_chains=self.num_items + len(self.unusable) - len(left_out),
                num_good=counts["chains_good"],
                broken=tuple(broken),
                left_out=tuple(left_out),
                notes=self.notes(),
                num_shards=len(shards),
                num_bytes=sum(shard.nbytes for shard in shards),
                units=len(self.units),
                resumed=self._initial_counts["units_done"],
                lost_workers=self.lost_workers,
                seconds=round(time.monotonic() - self._started_at, 3),
                chains_per_second=round(self._rate(counts), 2),
                path=report_path(self.ledger.url, self.job.dataset_uri, self.job_id),
            )
        )
        report.write()
        return report

    def cancelled(self) -> JobReport:
        """Record that the user cancelled the job."""
        return self.end(states.CANCELLED, "cancelled; run it again to continue")

    def complete(self, report: JobReport) -> JobReport:
        """A report with the additions of this kind of job."""
        return report

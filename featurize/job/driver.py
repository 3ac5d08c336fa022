"""A job that the ledger keeps, of chains or of entries: driven by one process, told, reported."""

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
"""Errors of what is left out: no proteins, and files that no chain uses."""


@contextlib.contextmanager
def undisturbed(dataset_uri: str, job_id: str) -> Iterator[Lease]:
    """Keep garbage collection from shards that only the ledger knows."""
    storage = open_storage(dataset_uri)
    with hold(storage, "job", job_id[:16]) as lease:
        if at_work := wait_for_none(storage, "gc", _PATIENCE):
            other, until = at_work.popitem()
            raise JobError(
                f"garbage is being collected in this dataset: run it again when that is over; if "
                f"it died, remove leases/gc-{other} or wait {until - time.time():.0f} s",
                path=dataset_uri,
            )
        yield lease


def parent_of(dataset_uri: str, ref: str) -> str | None:
    """The snapshot a ref points at now, None if there is no such ref yet."""
    try:
        return read_ref(open_storage(dataset_uri), ref).digest
    except DatasetMissing:
        return None


class KeptJob(Dispatch):
    """A job that the ledger keeps, of chains or entries, from its present state to its end."""

    options: JobOptions

    def begin(self, ledger: Ledger, job: Job, plan: Plan, unusable: Items) -> None:
        """From now on this job; `unusable` are inputs that no item could be made of.

        Units whose shards or templates are not what they were are to be done again.
        """
        self.job, self.num_items, self.unusable = job, len(plan.sources), unusable
        self.take_up(ledger, job.job_id, plan.units, self.options)
        for unit_id in {*self._lost_shards(), *self.outdated()}:
            ledger.give_back(job.job_id, unit_id)
        self._began, self._before = time.monotonic(), ledger.counts(job.job_id)

    @abc.abstractmethod
    def outdated(self) -> dict[str, str]:
        """Units whose template files changed or came since, each with a folder where one did."""

    def done(self) -> Items:
        """Units that are done, as the ledger has them."""
        return self.ledger.units(self.job_id, states.DONE)

    def made(self) -> Items:
        """Shards of units that are done: `ShardEntry.to_dict()`, and what their kind of job adds,
        such as the `templates` that they are made of (`template_use.remembered`)."""
        return [unit["shard"] for unit in self.done() if unit["shard"]]

    def _lost_shards(self) -> list[str]:
        """Units that count as done but whose shards are gone (deleted, or collected as garbage)."""
        made = {
            unit["unit_id"]: [one for one in (unit["shard"], unit["shard"].get("molecules")) if one]
            for unit in self.done()
            if unit["shard"]
        }
        files = open_storage(self.job.dataset_uri).files("shards/") if made else ()
        there = {(item.key.removeprefix("shards/"), item.nbytes) for item in files}
        return [
            unit_id
            for unit_id, shards in made.items()  # which may have been cut short
            if not there.issuperset((one["name"], one["nbytes"]) for one in shards)
        ]

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """The ledger learns of what breaks the job off."""
        try:
            yield
        except KeyboardInterrupt:
            self.end(states.CANCELLED, "interrupted; run it again to go on")
            raise
        except Exception as error:
            self.ledger.set_job(self.job_id, state=states.FAILED, message=str(error))
            raise

    def settle(self, output: UnitResult, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Enter a shard into the ledger; a trial's has not the whole unit."""
        if not is_trial:
            self.ledger.finish(self.job_id, output)
        return is_trial

    def missing(self) -> tuple[Items, Items]:
        """What is not in the snapshot, each with why: what is broken, and what was left out."""
        said = ("chain_id", "type", "message", "path", "line")
        dead = [{name: chain[name] for name in said} for chain in self.ledger.chains(self.job_id)]
        every = [*self.unusable, *dead]
        broken = [item for item in every if item["type"] not in _LEFT_OUT]
        return broken, [item for item in every if item["type"] in _LEFT_OUT]

    def notes(self) -> dict[str, list[str]]:
        """What was left out of good items, by their ids."""
        units = self.done()
        return dict(sorted((c, n) for unit in units for c, n in (unit["notes"] or {}).items()))

    def how_far(self) -> JobProgress:
        """State and progress of the job."""
        counts, seconds = self.ledger.counts(self.job_id), time.monotonic() - self._began
        cost_here = counts["cost_done"] - self._before["cost_done"]
        left = counts["cost"] - counts["cost_done"]
        return JobProgress(
            num_chains=self.num_items,
            good=counts["chains_good"],
            broken=counts["chains_broken"],
            suspects=len(self.ledger.chains(self.job_id, dead=False)),
            share=counts["cost_done"] / max(counts["cost"], 1),
            chains_per_second=self._pace(counts),
            seconds_left=seconds * left / cost_here if cost_here > 0 else None,
        )

    def _pace(self, counts: dict[str, int]) -> float:
        """Items a second of this run."""
        names = ("chains_good", "chains_broken")
        here = sum(counts[name] - self._before[name] for name in names)
        return here / max(time.monotonic() - self._began, 1e-9)

    def end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        """The job's state in the ledger, and the report, which is written."""
        made = {"snapshot": snapshot.digest} if snapshot else {}
        self.ledger.set_job(self.job_id, state=state, message=message, **made)
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
                resumed=self._before["units_done"],
                lost_workers=self.lost_workers,
                seconds=round(time.monotonic() - self._began, 3),
                chains_per_second=round(self._pace(counts), 2),
                path=report_path(self.ledger.url, self.job.dataset_uri, self.job_id),
            )
        )
        report.write()
        return report

    def cancelled(self) -> JobReport:
        """The end of a job that somebody cancelled."""
        return self.end(states.CANCELLED, "cancelled; run it again to go on")

    def complete(self, report: JobReport) -> JobReport:
        """A report with what only this kind of job has to say."""
        return report

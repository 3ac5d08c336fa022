"""A job of chains from its units to the snapshot that is published once."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evofeed.base.errors import JobError
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.inputs.clusters import NO_CLUSTER
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import (
    Account,
    JobHost,
    JobProgress,
    JobReport,
    broken_entries,
    note_entries,
)
from evofeed.featurize.job.dispatch import Dispatch
from evofeed.featurize.job.executors import ExecutorGone
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import JobOptions, relative
from evofeed.featurize.job.publish import missing_shards, publish
from evofeed.featurize.job.tables import JobRow
from evofeed.featurize.job.template_use import outdated, remembered
from evofeed.featurize.job.units import Plan, make_plan, path_of
from evofeed.featurize.job.work import UnitResult, UnitTask, expected_memory
from evofeed.store import Snapshot
from evofeed.store.inner import Lease, hold, open_storage, wait_for_none

Items = list[dict[str, Any]]
Progress = Callable[[JobProgress], None]
_PATIENCE = 30.0  # seconds to wait for a garbage collection to end


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


class KeptJob(Dispatch):
    """A job that the ledger keeps, of chains or entries, from its present state to its end."""

    options: JobOptions

    def begin(self, ledger: Ledger, job: JobRow, plan: Plan, unusable: Items) -> None:
        """From now on this job; units whose shards are gone are to be done again."""
        self.job = job
        self.take_up(ledger, job.job_id, plan.units, self.options)
        for unit_id in missing_shards(ledger, job):
            ledger.give_back(job.job_id, unit_id)
        self.account = Account(ledger, job, len(plan.sources), unusable)

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

    def end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        """The job's state in the ledger, and the report, which is written."""
        made = {"snapshot": snapshot.digest} if snapshot else {}
        self.ledger.set_job(self.job_id, state=state, message=message, **made)
        report = self.account.report(state, message, self.options.ref, snapshot, self.lost_workers)
        report = self.complete(report)
        report.write()
        return report

    def cancelled(self) -> JobReport:
        """The end of a job that somebody cancelled."""
        return self.end(states.CANCELLED, "cancelled; run it again to go on")

    def complete(self, report: JobReport) -> JobReport:
        """A report with what only this kind of job has to say."""
        return report


@dataclasses.dataclass(eq=False)
class Driver(KeptJob):
    """A job of chains."""

    ledger: Ledger
    job: JobRow
    plan: Plan
    unusable: Items
    config: FeaturizeConfig
    crop: CropConfig | None
    options: JobOptions
    clusters: Mapping[str, int] | None
    progress: Progress | None
    lease: Lease
    host: JobHost

    def __post_init__(self) -> None:
        self.begin(self.ledger, self.job, self.plan, self.unusable)
        self.run_id = secrets.token_hex(8)
        self.host.found(broken_entries(self.account.broken()) + note_entries(self.account.notes()))

    def run(self) -> JobReport:
        """From its present state to its end."""
        with self.told():
            try:
                if not self.work_off(self.options):
                    return self.cancelled()
                return self._publish()
            except ExecutorGone as gone:
                return self.end(states.FAILED, f"nothing was published: {gone.message}")

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> UnitTask:
        """These chains of a unit, to featurize."""
        unit = self.units[unit_id]
        return UnitTask(
            unit_id=unit_id,
            dataset_uri=self.job.dataset_uri,
            sources=tuple(self.plan.sources[chain_id] for chain_id in item_ids),
            config=self.config,
            crop=self.crop,
            memory=self.options.memory,
            expected_memory=expected_memory(unit.largest, unit.cost),
            run=self.run_id,
            limits=self.host.limits,
        )

    def settle(self, output: UnitResult, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Enter a shard into the ledger, and tell the host what is left out."""
        result = self._localised(output)
        if not is_trial:
            self.host.found(broken_entries(result.failures) + note_entries(result.notes))
        return super().settle(result, item_ids, is_trial)

    def _localised(self, result: UnitResult) -> UnitResult:
        """Paths as the user knows them: relative to the input, the same on every machine."""
        failures = tuple(
            {**failure, "path": relative(failure["path"], self.job.input_uri)}
            for failure in result.failures
        )
        shard = result.shard and {**result.shard, "templates": remembered(result.templates)}
        return dataclasses.replace(result, failures=failures, shard=shard)

    def _publish(self) -> JobReport:
        broken, total = self.account.broken(), self.account.total
        if len(broken) == total:
            return self.end(states.FAILED, f"all {total} chains are broken, nothing to publish")
        if share := self.options.too_many(len(broken), total):
            return self.end(
                states.FAILED,
                f"{len(broken)} of {total} chains are broken, more than max_broken "
                f"{share} allows: repair them or raise it, and run again; "
                "what is done is kept",
            )
        if changed := self._changed():
            what = f"{len(changed)} inputs changed while the job ran, {changed[0]} for one"
            return self.end(states.FAILED, f"{what}: run it again; what did not change is kept")
        if stale := outdated(self.ledger.units(self.job_id, states.DONE), self.config):
            what = f"template files changed while the job ran, in {min(stale.values())} for one"
            return self.end(states.FAILED, f"{what}: run it again; the other units are kept")
        settings = {"featurize": dataclasses.asdict(self.config)}
        settings |= {"crop": dataclasses.asdict(self.crop)} if self.crop else {}
        snapshot = publish(
            self.ledger,
            self.job,
            broken + [item for item in self.account.left_out() if item["type"] == "NoProtein"],
            settings,
            self.options,
            self.clusters,
            self.host.move,
        )
        return self.end(states.PUBLISHED, "", snapshot)

    def _changed(self) -> list[str]:
        """Inputs that came, went or are not as they were when the plan was made.

        Their units are to be done again, for what was read may not be what their name says.
        """
        before, sources = self.plan.inputs, list(self.plan.sources.values())
        plan = make_plan(sources, self.config, self.crop)
        for unit_id in sorted(self.units.keys() - {unit.unit_id for unit in plan.units}):
            self.ledger.give_back(self.job_id, unit_id, acquit=True)
        return sorted(
            relative(path_of(key), self.job.input_uri) or ""
            for key in before.keys() | plan.inputs.keys()
            if before.get(key) != plan.inputs.get(key)
        )

    def complete(self, report: JobReport) -> JobReport:
        """With a note for each chain that is in no cluster of the file given."""
        broken = {chain["chain_id"] for chain in report.broken}
        notes = dict(report.notes)
        for chain_id, size in (self.clusters or {}).items():
            if size == NO_CLUSTER and chain_id not in broken:
                notes[chain_id] = [*notes.get(chain_id, ()), "in no cluster of the file given"]
        return dataclasses.replace(report, notes=dict(sorted(notes.items())))

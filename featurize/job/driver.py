"""A job's units on their way: leased, sent to workers, settled, blamed, published once."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.formats.reading import FileRef
from evofeed.featurize.inputs.clusters import NO_CLUSTER
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import Account
from evofeed.featurize.job.blame import Blame
from evofeed.featurize.job.executors import Executor, ExecutorGone, Outcome
from evofeed.featurize.job.host import JobHost, broken_entries, note_entries
from evofeed.featurize.job.inputs import KnownInputs, Stamp, path_of
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.opening import open_executor
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.places import relative
from evofeed.featurize.job.publish import drop_joined, missing_shards, publish
from evofeed.featurize.job.report import JobProgress, JobReport
from evofeed.featurize.job.tables import JobRow
from evofeed.featurize.job.template_use import outdated, remembered, stamps, template_key
from evofeed.featurize.job.units import Plan, Unit, make_plan
from evofeed.featurize.job.work import UnitResult, UnitTask, expected_memory
from evofeed.featurize.job.worker import UnitFailed, UnitLost
from evofeed.store import Snapshot
from evofeed.store.inner import Lease

_TICK = 0.5  # seconds between looks at cancellation

Progress = Callable[[JobProgress], None]


def lease_name(job_id: str) -> str:
    """What the leases of a job's drivers are called."""
    return job_id[:16]


@dataclasses.dataclass(eq=False)
class Driver:
    """A job on its way from its present state to its end."""

    ledger: Ledger
    job: JobRow
    plan: Plan
    unusable: list[dict[str, Any]]
    templates: dict[str, Stamp]
    """Files that done units were made of, by `template_key`."""
    known: KnownInputs
    config: FeaturizeConfig
    crop: CropConfig | None
    options: JobOptions
    clusters: Mapping[str, int] | None
    progress: Progress | None
    lease: Lease
    host: JobHost

    def __post_init__(self) -> None:
        self.units = {unit.unit_id: unit for unit in self.plan.units}
        self.run_id = secrets.token_hex(8)
        self.flying: set[str] = set()
        self.blame = Blame(self.ledger, self.job.job_id, self.options.deadline)
        self._last_report = 0.0
        for unit_id in missing_shards(self.ledger, self.job):
            self.ledger.give_back(self.job.job_id, unit_id)
        self.account = Account(self.ledger, self.job, len(self.plan.sources), self.unusable)
        self.host.found(broken_entries(self.account.broken()) + note_entries(self.account.notes()))

    def run(self) -> JobReport:
        """From its present state to its end."""
        job_id = self.job.job_id
        waiting = deque(row["unit_id"] for row in self.ledger.units(job_id, states.TODO))
        try:
            if waiting and self._work(waiting):
                return self._end(states.CANCELLED, "cancelled; run it again to go on")
            return self._publish()
        except ExecutorGone as gone:
            return self._end(states.FAILED, f"nothing was published: {gone.message}")
        except KeyboardInterrupt:
            self._end(states.CANCELLED, "interrupted; run it again to go on")
            raise
        except Exception as error:
            self.ledger.set_job(job_id, state=states.FAILED, message=str(error))
            raise

    def _work(self, waiting: deque[str]) -> bool:
        """Do all units; True if the job was cancelled meanwhile.

        Raises:
            ExecutorGone: Ray is.
        """
        with contextlib.closing(open_executor(self.options)) as executor:
            return self._feed(executor, waiting)

    def _feed(self, executor: Executor, waiting: deque[str]) -> bool:
        while waiting or self.flying:
            if self.ledger.job(self.job.job_id).cancel_requested:
                return True
            self.lease.renew()
            while waiting and executor.room() > 0:
                task = self._task(self.units[waiting.popleft()])
                self.ledger.lease(self.job.job_id, task.unit_id)
                executor.submit(task)
                self.flying.add(task.unit_id)
            outcomes = executor.wait(_TICK)
            for outcome in outcomes:
                self.flying.remove(outcome.unit_id)
                waiting.extend(self._settle(outcome))
            self._tell(force=bool(outcomes))
        return False

    def _task(self, unit: Unit) -> UnitTask:
        """What is left of a unit; suspects first, so that poison shows before work is done."""
        known = {c["chain_id"]: c["dead"] for c in self.ledger.chains(self.job.job_id, dead=None)}
        chain_ids = [chain_id for chain_id in unit.chain_ids if not known.get(chain_id, False)]
        chain_ids.sort(key=lambda chain_id: chain_id not in known)
        if suspect := self.blame.suspect(unit.unit_id):
            chain_ids = [suspect]
        return UnitTask(
            unit_id=unit.unit_id,
            dataset_uri=self.job.dataset_uri,
            sources=tuple(self.plan.sources[chain_id] for chain_id in chain_ids),
            config=self.config,
            crop=self.crop,
            memory=self.options.memory,
            expected_memory=expected_memory(unit.largest, unit.cost),
            run=self.run_id,
            limits=self.host.limits,
        )

    def _settle(self, outcome: Outcome) -> list[str]:
        """Enter an outcome into the ledger; returns the unit if it must be done again."""
        if isinstance(outcome, UnitFailed):
            self.ledger.give_back(self.job.job_id, outcome.unit_id)
            raise outcome.error
        if isinstance(outcome, UnitResult):
            if self.blame.was_trial(outcome.unit_id):
                return [outcome.unit_id]
            read = {
                key: dataclasses.replace(self.plan.inputs[key], sha256=digest)
                for key, digest in outcome.inputs.items()
                if key in self.plan.inputs
            }
            used = stamps(outcome.templates)
            read |= {key: stamp for key, stamp in used.items() if self.templates.get(key) != stamp}
            self.templates |= used
            result = self._localised(outcome)
            self.ledger.finish(self.job.job_id, result, read)
            self.host.found(broken_entries(result.failures) + note_entries(result.notes))
            return []
        assert isinstance(outcome, UnitLost)  # this job sends no other tasks
        self.account.lost_workers += 1
        chain_ids = tuple(s.chain_id for s in self._task(self.units[outcome.unit_id]).sources)
        self.blame.lost(outcome, chain_ids)
        return [outcome.unit_id]

    def _localised(self, result: UnitResult) -> UnitResult:
        """Paths as the user knows them: relative to the input, the same on every machine."""
        failures = tuple(
            {**failure, "path": relative(failure["path"], self.job.input_uri)}
            for failure in result.failures
        )
        shard = result.shard and {
            **result.shard,
            "templates": remembered(result.templates, self.known),
        }
        return dataclasses.replace(result, failures=failures, shard=shard)

    def _publish(self) -> JobReport:
        broken, total = self.account.broken(), self.account.total
        if len(broken) == total:
            return self._end(states.FAILED, f"all {total} chains are broken, nothing to publish")
        if share := self.options.too_many(len(broken), total):
            return self._end(
                states.FAILED,
                f"{len(broken)} of {total} chains are broken, more than max_broken "
                f"{share} allows: repair them or raise it, and run again; "
                "what is done is kept",
            )
        if changed := self._changed():
            what = f"{len(changed)} inputs changed while the job ran, {changed[0]} for one"
            return self._end(states.FAILED, f"{what}: run it again; what did not change is kept")
        done = self.ledger.units(self.job.job_id, states.DONE)
        if units := outdated(done, self.known, self._template_content):
            what = f"template files of {len(units)} units changed while the job ran"
            return self._end(states.FAILED, f"{what}: run it again; the other units are kept")
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
        values = {"state": states.PUBLISHED, "snapshot": snapshot.digest, "message": ""}
        self.ledger.set_job(self.job.job_id, **values)
        drop_joined(self.ledger, self.job, lease_name(self.job.job_id))
        return self._end(states.PUBLISHED, "", snapshot)

    def _changed(self) -> list[str]:
        """Inputs that came, went or are not as they were when the plan was made.

        Their units are to be done again, for what was read may not be what their name says.
        """
        before, sources = self.plan.inputs, list(self.plan.sources.values())
        known = KnownInputs(self.known.root, before)
        plan = make_plan(sources, self.config, self.crop, known)
        for unit_id in sorted(self.units.keys() - {unit.unit_id for unit in plan.units}):
            self.ledger.give_back(self.job.job_id, unit_id)
        missing = Stamp("", 0, 0)
        return sorted(
            relative(path_of(key), self.job.input_uri) or ""
            for key in before.keys() | plan.inputs.keys()
            if before.get(key, missing).name != plan.inputs.get(key, missing).name
        )

    def _template_content(self, ref: FileRef) -> str:
        stamp = self.templates.get(template_key(ref))
        return stamp.sha256 if stamp is not None and stamp.still(ref) else ""

    def _end(self, state: str, message: str, snapshot: Snapshot | None = None) -> JobReport:
        if state != states.PUBLISHED:
            self.ledger.set_job(self.job.job_id, state=state, message=message)
        report = self.account.report(state, message, self.options.ref, snapshot)
        report = dataclasses.replace(report, notes=self._with_unclustered(report))
        report.write()
        return report

    def _with_unclustered(self, report: JobReport) -> dict[str, list[str]]:
        """A report's notes, and one for each chain that is in no cluster of the file given."""
        broken = {chain["chain_id"] for chain in report.broken}
        notes = dict(report.notes)
        for chain_id, size in (self.clusters or {}).items():
            if size == NO_CLUSTER and chain_id not in broken:
                notes[chain_id] = [*notes.get(chain_id, ()), "in no cluster of the file given"]
        return dict(sorted(notes.items()))

    def _tell(self, force: bool) -> None:
        """Tell the progress, at most about twice a second unless something happened."""
        now = time.monotonic()
        if self.progress is not None and (force or now - self._last_report >= _TICK):
            self._last_report = now
            self.progress(self.account.progress())

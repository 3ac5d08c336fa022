"""A job of chains from its input to its published snapshot: found, planned, driven.

At-least-once work becomes exactly-once because shards are named by their content,
the ledger holds one result per unit, and one compare-and-swap publishes them all.
Killed at any moment and run again, the driver ends with the same snapshot digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evofeed.base.counts import counted
from evofeed.base.errors import InputError, JobError, RefConflict
from evofeed.base.within import limited_to
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.inputs.clusters import NO_CLUSTER, cluster_sizes
from evofeed.featurize.inputs.discovery import discover, nothing_usable
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import JobHost, JobReport, broken_entries, note_entries
from evofeed.featurize.job.driver import Items, KeptJob, Progress, parent_of, undisturbed
from evofeed.featurize.job.executors import ExecutorGone
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driving
from evofeed.featurize.job.options import JobOptions, absolute, ledger_url, refuse_same, relative
from evofeed.featurize.job.template_use import outdated, remembered
from evofeed.featurize.job.units import Plan, make_plan, path_of, sha_of
from evofeed.featurize.job.work import UnitResult, UnitTask, describe, expected_memory
from evofeed.store import Dataset, DatasetWriter, ShardEntry, Snapshot
from evofeed.store.inner import Lease


def run_job(
    input_uri: str,
    dataset_uri: str,
    *,
    config: FeaturizeConfig | None = None,
    crop: CropConfig | None = None,
    options: JobOptions | None = None,
    progress: Progress | None = None,
    discover_args: Mapping[str, Any] | None = None,
    host: JobHost | None = None,
    **changes: Any,
) -> JobReport:
    """Featurize every chain of an input and publish them as a snapshot of a dataset.

    Run it again with the same arguments after a crash, a cancellation or a repair of
    the input: finished units are kept, the rest is done.

    Args:
        dataset_uri: where shards and snapshot go; made if missing.
        options: workers, limits, ledger; `**changes` are its fields, for short:
            `run_job(a, b, executor="local", workers=2)`.
        progress: called after each unit and about twice a second.
        host: how the job belongs to the service that runs it.

    Returns:
        The report, which is also written as JSON beside the ledger.

    Raises:
        InputError: no chain in the input.
        JobError: the ledger, Ray or another driver is in the way.
        StoreError: the dataset cannot be written; everything done so far is kept.
    """
    options = JobOptions(**{**(options.to_dict() if options else {}), **changes})
    config, host = config or FeaturizeConfig(), host or JobHost()
    input_uri, dataset_uri = absolute(input_uri), absolute(dataset_uri)  # to be run from anywhere
    refuse_same(input_uri, dataset_uri)
    if options.clusters:
        options = dataclasses.replace(options, clusters=absolute(options.clusters))
    problems: list[InputError] = []
    finder: dict[str, Any] = {
        name: absolute(os.fspath(value)) if isinstance(value, str | os.PathLike) else value
        for name, value in (discover_args or {}).items()
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(limited_to(host.limits))
        sources = discover(input_uri, problems=problems, **finder)
        if not sources:
            raise nothing_usable(problems, input_uri)
        # Needed at the end only; a file that does not fit is refused now.
        clusters = cluster_sizes(options.clusters, sources) if options.clusters else None
        ledger = Ledger(ledger_url(options.ledger, dataset_uri))
        stack.enter_context(contextlib.closing(ledger))
        plan = make_plan(sources, config, crop)
        owner = [host.owner] if host.owner else []
        job_id = sha_of(plan.digest, dataset_uri, options.ref, *owner)
        stack.enter_context(driving(ledger, job_id, host.waits))
        lease = stack.enter_context(undisturbed(dataset_uri, job_id))
        arguments = {
            "config": dataclasses.asdict(config),
            "crop": dataclasses.asdict(crop) if crop else None,
            "options": {**options.to_dict(), "ledger": ""},  # its URL may hold a password
            "discover": finder,
        }
        where = {"input_uri": input_uri, "dataset_uri": dataset_uri, "arguments": arguments}
        parent = parent_of(dataset_uri, options.ref)
        if parent is not None and not options.replace_ref:
            _refuse_other_input(ledger, parent, where, options.ref, plan)
        if host.retry:
            ledger.retry(job_id)
        job = _ChainJob(plan, config, crop, options, clusters, progress, lease, host)
        unusable = [_unusable(problem, input_uri) for problem in problems]
        job.begin(ledger, ledger.begin(job_id, plan, where, parent), plan, unusable)
        return job.run()


def _refuse_other_input(
    ledger: Ledger, parent: str, where: Mapping[str, Any], ref: str, plan: Plan
) -> None:
    """Raise where a ref holds chains of another input that this one has not: they would be gone."""
    input_uri, dataset_uri = where["input_uri"], where["dataset_uri"]
    made_of = {job.input_uri for job in ledger.jobs() if job.snapshot == parent}
    if input_uri in made_of:
        return
    with Dataset.open(dataset_uri, ref) as dataset:
        held = set(dataset)
    if lost := held - plan.sources.keys():
        raise JobError(
            f"{ref!r} has {len(held)} chains{f' of {min(made_of)}' if made_of else ''}, "
            f"{len(lost)} of which are not in {input_uri} ({min(lost)} for one): say `replace` if "
            "they are to go, name another ref for a second snapshot, or give an input with both",
            path=dataset_uri,
        )


def _unusable(problem: InputError, input_uri: str) -> dict[str, Any]:
    """An input that `discover` could not make a chain of, as an entry of the report."""
    path = relative(problem.path, input_uri)
    return {**describe(problem), "chain_id": problem.item or path or "?", "path": path}


@dataclass(eq=False)
class _ChainJob(KeptJob):
    plan: Plan
    config: FeaturizeConfig
    crop: CropConfig | None
    options: JobOptions
    clusters: Mapping[str, int] | None
    progress: Progress | None
    lease: Lease
    host: JobHost
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))

    def run(self) -> JobReport:
        """From its present state to its end."""
        self.host.found(broken_entries(self.missing()[0]) + note_entries(self.notes()))
        with self.told():
            try:
                if not self.work_off(self.options):
                    return self.cancelled()
                return self._publish()
            except ExecutorGone as gone:
                return self.end(states.FAILED, f"nothing was published: {gone.message}")

    def outdated(self) -> dict[str, str]:
        """Units whose template files changed or came since, each with a folder where one did."""
        return outdated(self.done(), self.config)

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
        """Enter a shard into the ledger, and tell the host what is left out.

        Paths are as the user knows them: relative to the input, the same on every machine.
        """
        failures = tuple(
            {**failure, "path": relative(failure["path"], self.job.input_uri)}
            for failure in output.failures
        )
        shard = output.shard and {**output.shard, "templates": remembered(output.templates)}
        if not is_trial:
            self.host.found(broken_entries(failures) + note_entries(output.notes))
        output = dataclasses.replace(output, failures=failures, shard=shard)
        return super().settle(output, item_ids, is_trial)

    def _publish(self) -> JobReport:
        """Publish what is good, unless too much is broken or the input is not what it was."""
        broken, left_out = self.missing()
        total = self.num_items + len(self.unusable) - len(left_out)
        if len(broken) == total:
            why = f"none of {counted(total, 'chain')} is good, nothing to publish"
            return self.end(states.FAILED, why)
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
        if stale := self.outdated():
            what = f"template files changed while the job ran, in {min(stale.values())} for one"
            return self.end(states.FAILED, f"{what}: run it again; the other units are kept")
        not_in_it = [*broken, *(item for item in left_out if item["type"] == "NoProtein")]
        try:
            snapshot = self._commit(self.job.parent, not_in_it)
        except RefConflict as error:
            # Moved since the job began, when its parent was fixed: so that a second try, after a
            # crash at any point of the first, commits the same snapshot.
            now = parent_of(self.job.dataset_uri, self.options.ref)
            self.ledger.set_job(self.job_id, parent=now)
            if now is None or now != self.job.snapshot:
                raise RefConflict(
                    f"{error.message.partition(':')[0]}; nothing was published and nothing is "
                    "lost: run it again to publish on top of what is there now",
                    path=error.path,
                ) from error
            snapshot = self._commit(now, not_in_it)  # our own earlier result, now bettered
        return self.end(states.PUBLISHED, "", snapshot)

    def _commit(self, parent: str | None, not_in_it: Items) -> Snapshot:
        """The one moment at which a job becomes visible: every shard in one snapshot, a ref moved.

        Raises:
            RefConflict: the ref does not point at the parent.
        """
        known = [{name: value for name, value in item.items() if value} for item in not_in_it]
        settings = {"featurize": dataclasses.asdict(self.config)}
        settings |= {"crop": dataclasses.asdict(self.crop)} if self.crop else {}
        writer = DatasetWriter(self.job.dataset_uri)
        for shard in self.made():
            writer.add_shard(ShardEntry.from_dict(shard))
        return writer.commit(
            self.options.ref,
            expect=parent,
            config=settings,
            dropped=[{"reason": item.pop("message"), **item} for item in known],
            move=self.host.move,
            cluster_sizes=self.clusters,
        )

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

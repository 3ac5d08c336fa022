"""A job of chains from its input to its published snapshot: discovered, planned, driven.

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
from evofeed.featurize.job.driver import Items, LedgerJob, Progress, current_snapshot, job_lease
from evofeed.featurize.job.executors import ExecutorGone
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driver_lock
from evofeed.featurize.job.options import JobOptions, absolute, check_separate, ledger_url, relative
from evofeed.featurize.job.template_use import outdated_units, stored_templates
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
        dataset_uri: where shards and snapshot go; created if missing.
        options: workers, limits, ledger; `**changes` are its fields, for short:
            `run_job(a, b, executor="local", workers=2)`.
        progress: called after each unit and about twice a second.
        host: owner and callbacks of the service that runs the job.

    Returns:
        The report, which is also written as JSON next to the ledger.

    Raises:
        InputError: no chain in the input.
        JobError: the ledger or Ray cannot be used, or another driver runs the job.
        StoreError: the dataset cannot be written; everything done so far is kept.
    """
    options = JobOptions(**{**(options.to_dict() if options else {}), **changes})
    config, host = config or FeaturizeConfig(), host or JobHost()
    input_uri, dataset_uri = absolute(input_uri), absolute(dataset_uri)  # of any working directory
    check_separate(input_uri, dataset_uri)
    if options.clusters:
        options = dataclasses.replace(options, clusters=absolute(options.clusters))
    problems: list[InputError] = []
    discover_args = {
        name: absolute(os.fspath(value)) if isinstance(value, str | os.PathLike) else value
        for name, value in (discover_args or {}).items()
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(limited_to(host.limits))
        sources = discover(input_uri, problems=problems, **discover_args)
        if not sources:
            raise nothing_usable(problems, input_uri)
        # Needed at the end only, but an invalid file is refused now.
        clusters = cluster_sizes(options.clusters, sources) if options.clusters else None
        ledger = Ledger(ledger_url(options.ledger, dataset_uri))
        stack.enter_context(contextlib.closing(ledger))
        plan = make_plan(sources, config, crop)
        owner = [host.owner] if host.owner else []
        job_id = sha_of(plan.digest, dataset_uri, options.ref, *owner)
        stack.enter_context(driver_lock(ledger, job_id, host.waits))
        lease = stack.enter_context(job_lease(dataset_uri, job_id))
        arguments = {
            "config": dataclasses.asdict(config),
            "crop": dataclasses.asdict(crop) if crop else None,
            "options": {**options.to_dict(), "ledger": ""},  # its URL may hold a password
            "discover": discover_args,
        }
        request = {"input_uri": input_uri, "dataset_uri": dataset_uri, "arguments": arguments}
        parent = current_snapshot(dataset_uri, options.ref)
        if parent is not None and not options.replace_ref:
            _refuse_other_input(ledger, parent, request, options.ref, plan)
        if host.retry:
            ledger.retry(job_id)
        job = _ChainJob(plan, config, crop, options, clusters, progress, lease, host)
        unusable = [_unusable(problem, input_uri) for problem in problems]
        job.begin(ledger, ledger.begin(job_id, plan, request, parent), plan, unusable)
        return job.run()


def _refuse_other_input(
    ledger: Ledger, parent: str, request: Mapping[str, Any], ref: str, plan: Plan
) -> None:
    """Raise JobError if a ref has chains of another input that this one lacks."""
    input_uri, dataset_uri = request["input_uri"], request["dataset_uri"]
    parent_inputs = {job.input_uri for job in ledger.jobs() if job.snapshot == parent}
    if input_uri in parent_inputs:
        return
    with Dataset.open(dataset_uri, ref) as dataset:
        chain_ids = set(dataset)
    if lost := chain_ids - plan.sources.keys():
        origin = f" of {min(parent_inputs)}" if parent_inputs else ""
        raise JobError(
            f"{ref!r} has {len(chain_ids)} chains{origin}, {len(lost)} of which are not in "
            f"{input_uri} ({min(lost)} for one): say `replace` if they are to go, name another "
            "ref for a second snapshot, or give an input with both",
            path=dataset_uri,
        )


def _unusable(problem: InputError, input_uri: str) -> dict[str, Any]:
    """A report entry for an input that `discover` could not read as a chain."""
    path = relative(problem.path, input_uri)
    return {**describe(problem), "chain_id": problem.item or path or "?", "path": path}


@dataclass(eq=False)
class _ChainJob(LedgerJob):
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
        """Continue the job from its recorded state to its end."""
        self.host.report_chains(broken_entries(self.missing()[0]) + note_entries(self.notes()))
        with self.failures_recorded():
            try:
                if not self.run_units(self.options):
                    return self.cancelled()
                return self._publish()
            except ExecutorGone as gone:
                return self.end(states.FAILED, f"nothing was published: {gone.message}")

    def outdated_units(self) -> dict[str, str]:
        """Units whose template files changed or were added since, each with one folder of these."""
        return outdated_units(self.done_units(), self.config)

    def task(self, unit_id: str, item_ids: tuple[str, ...]) -> UnitTask:
        """The task to featurize these chains of a unit."""
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

    def record_output(self, output: UnitResult, item_ids: tuple[str, ...], is_trial: bool) -> bool:
        """Record a shard in the ledger, and pass failures and notes to the host.

        Paths are relative to the input, and so the same on every machine.
        """
        failures = tuple(
            {**failure, "path": relative(failure["path"], self.job.input_uri)}
            for failure in output.failures
        )
        shard = output.shard and {**output.shard, "templates": stored_templates(output.templates)}
        if not is_trial:
            self.host.report_chains(broken_entries(failures) + note_entries(output.notes))
        output = dataclasses.replace(output, failures=failures, shard=shard)
        return super().record_output(output, item_ids, is_trial)

    def _publish(self) -> JobReport:
        """Publish the good chains, unless too many are broken or the input has changed."""
        broken, left_out = self.missing()
        total = self.num_items + len(self.unusable) - len(left_out)
        if len(broken) == total:
            message = f"none of {counted(total, 'chain')} is good, nothing to publish"
            return self.end(states.FAILED, message)
        if share := self.options.exceeded_share(len(broken), total):
            return self.end(
                states.FAILED,
                f"{len(broken)} of {total} chains are broken, more than max_broken "
                f"{share} allows: repair them or raise it, and run again; "
                "finished work is kept",
            )
        if changed := self._requeue_changed():
            message = f"{len(changed)} inputs changed while the job ran, {changed[0]} for one"
            return self.end(states.FAILED, f"{message}: run it again; unchanged units are kept")
        if stale := self.outdated_units():
            message = f"template files changed while the job ran, in {min(stale.values())} for one"
            return self.end(states.FAILED, f"{message}: run it again; the other units are kept")
        dropped = [*broken, *(item for item in left_out if item["type"] == "NoProtein")]
        try:
            snapshot = self._commit(self.job.parent, dropped)
        except RefConflict as error:
            # The ref moved after the job began, when its parent was fixed: so that a second try,
            # after a crash at any point of the first, commits the same snapshot.
            parent = current_snapshot(self.job.dataset_uri, self.options.ref)
            self.ledger.set_job(self.job_id, parent=parent)
            if parent is None or parent != self.job.snapshot:
                raise RefConflict(
                    f"{error.message.partition(':')[0]}; nothing was published and nothing is "
                    "lost: run it again to publish on top of the ref's new snapshot",
                    path=error.path,
                ) from error
            snapshot = self._commit(parent, dropped)  # on top of this job's own earlier snapshot
        return self.end(states.PUBLISHED, "", snapshot)

    def _commit(self, parent: str | None, dropped: Items) -> Snapshot:
        """Write one snapshot of all shards and move the ref: the moment a job becomes visible.

        Raises:
            RefConflict: the ref does not point at the parent.
        """
        dropped = [{name: value for name, value in item.items() if value} for item in dropped]
        settings = {"featurize": dataclasses.asdict(self.config)}
        settings |= {"crop": dataclasses.asdict(self.crop)} if self.crop else {}
        writer = DatasetWriter(self.job.dataset_uri)
        for shard in self.done_shards():
            writer.add_shard(ShardEntry.from_dict(shard))
        return writer.commit(
            self.options.ref,
            expect=parent,
            config=settings,
            dropped=[{"reason": item.pop("message"), **item} for item in dropped],
            move=self.host.move,
            cluster_sizes=self.clusters,
        )

    def _requeue_changed(self) -> list[str]:
        """Inputs that were added, removed or changed since the plan was made.

        Their units are requeued, for the workers may have read either version.
        """
        before, sources = self.plan.inputs, list(self.plan.sources.values())
        plan = make_plan(sources, self.config, self.crop)
        for unit_id in sorted(self.units.keys() - {unit.unit_id for unit in plan.units}):
            self.ledger.requeue(self.job_id, unit_id, forget_broken=True)
        return sorted(
            relative(path_of(key), self.job.input_uri) or ""
            for key in before.keys() | plan.inputs.keys()
            if before.get(key) != plan.inputs.get(key)
        )

    def complete(self, report: JobReport) -> JobReport:
        """Add a note on each chain that is in no cluster of the option `clusters`."""
        broken = {chain["chain_id"] for chain in report.broken}
        notes = dict(report.notes)
        for chain_id, size in (self.clusters or {}).items():
            if size == NO_CLUSTER and chain_id not in broken:
                notes[chain_id] = [*notes.get(chain_id, ()), "in no cluster of the file given"]
        return dataclasses.replace(report, notes=dict(sorted(notes.items())))

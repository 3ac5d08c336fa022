"""A job from its input to its published snapshot: found, planned, entered in the ledger, driven.

At-least-once work becomes exactly-once because shards are named by their content,
the ledger holds one result per unit, and one compare-and-swap publishes them all.
Killed at any moment and run again, the driver ends with the same snapshot digest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from evofeed.base.errors import InputError, JobError
from evofeed.base.within import limited_to
from evofeed.featurize.config import CropConfig, FeaturizeConfig
from evofeed.featurize.inputs.clusters import cluster_sizes
from evofeed.featurize.inputs.discovery import discover, nothing_usable
from evofeed.featurize.inputs.sources import ChainSource
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.account import JobHost, JobReport
from evofeed.featurize.job.driver import Driver, Progress, undisturbed
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.lock import driving
from evofeed.featurize.job.options import JobOptions, absolute, ledger_url, relative
from evofeed.featurize.job.publish import parent_of
from evofeed.featurize.job.template_use import outdated
from evofeed.featurize.job.units import make_plan, sha_of
from evofeed.featurize.job.work import describe
from evofeed.store import Dataset


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
        unusable = [_unusable(problem, input_uri) for problem in problems]
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
        parent = parent_of(dataset_uri, options.ref)
        if parent is not None and not options.replace_ref:
            _refuse_other_input(ledger, parent, input_uri, dataset_uri, options.ref, sources)
        where = {"input_uri": input_uri, "dataset_uri": dataset_uri, "arguments": arguments}
        if host.retry:
            ledger.retry(job_id)
        job = ledger.begin(job_id, plan, where, parent)
        for unit_id in outdated(ledger.units(job_id, states.DONE), config):
            ledger.give_back(job_id, unit_id)
        driver = Driver(
            ledger, job, plan, unusable, config, crop, options, clusters, progress, lease, host
        )
        return driver.run()


def _refuse_other_input(
    ledger: Ledger,
    parent: str,
    input_uri: str,
    dataset_uri: str,
    ref: str,
    sources: Sequence[ChainSource],
) -> None:
    """Raise where a ref holds chains of another input that this one has not: they would be gone."""
    made_of = {job.input_uri for job in ledger.jobs() if job.snapshot == parent}
    if input_uri in made_of:
        return
    with Dataset.open(dataset_uri, ref) as dataset:
        held = set(dataset)
    lost = held - {source.chain_id for source in sources}
    if lost:
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

"""The one moment at which a job becomes visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.tables import Job
from evofeed.store import DatasetWriter, ShardEntry, Snapshot
from evofeed.store.inner import MoveRef, move_ref, open_storage, read_ref

Unit = Mapping[str, Any]
"""A row of the ledger's units that has a shard: `ShardEntry.to_dict()`, and the `templates` it
was made of (`template_use.remembered`)."""


def parent_of(dataset_uri: str, ref: str) -> str | None:
    """The snapshot a ref points at now, None if there is no such ref yet."""
    try:
        return read_ref(open_storage(dataset_uri), ref).digest
    except DatasetMissing:
        return None


def missing_shards(ledger: Ledger, job: Job) -> list[str]:
    """Units that count as done but whose chains are gone (deleted, or collected as garbage)."""
    done = _with_shards(ledger, job)
    files = open_storage(job.dataset_uri).files("shards/") if done else ()
    there = {(item.key.removeprefix("shards/"), item.nbytes) for item in files}
    gone = []
    for unit in done:
        made = [one for one in (unit["shard"], unit["shard"].get("molecules")) if one]
        if not there.issuperset((one["name"], one["nbytes"]) for one in made):  # or were cut short
            gone.append(unit["unit_id"])
    return gone


def publish(
    ledger: Ledger,
    job: Job,
    broken: list[dict[str, Any]],
    settings: dict[str, Any],
    options: JobOptions,
    clusters: Mapping[str, int] | None = None,
    move: MoveRef = move_ref,
) -> Snapshot:
    """Commit every shard of a job as one snapshot and move the ref.

    The parent was fixed when the job began, so a second try, after a crash at any
    point of the first, commits the same snapshot. If somebody else moved the ref
    meanwhile, this run fails, and the next one takes what is there as its parent.

    Raises:
        RefConflict: somebody else moved the ref while the job ran.
    """
    known = [{name: value for name, value in chain.items() if value} for chain in broken]
    dropped = [{"reason": chain.pop("message"), **chain} for chain in known]

    def commit(parent: str | None) -> Snapshot:
        writer = DatasetWriter(job.dataset_uri)
        for unit in _with_shards(ledger, job):
            writer.add_shard(ShardEntry.from_dict(unit["shard"]))
        return writer.commit(
            options.ref, expect=parent, config=settings, dropped=dropped, move=move,
            cluster_sizes=clusters,
        )  # fmt: skip

    try:
        return commit(job.parent)
    except RefConflict as error:
        now = parent_of(job.dataset_uri, options.ref)
        ledger.set_job(job.job_id, parent=now)
        if now is not None and now == job.snapshot:  # our own earlier result, now bettered
            return commit(now)
        raise RefConflict(
            f"{error.message.partition(':')[0]}; nothing was published and nothing is lost: "
            "run it again to publish on top of what is there now",
            path=error.path,
        ) from error


def _with_shards(ledger: Ledger, job: Job) -> Sequence[Unit]:
    return [unit for unit in ledger.units(job.job_id, states.DONE) if unit["shard"]]

"""The one moment at which a job becomes visible."""

from __future__ import annotations

from typing import Any

from evofeed.errors import DatasetMissing, RefConflict
from evofeed.featurize.caches import read_cluster_sizes
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.tables import JobRow
from evofeed.store import DatasetWriter, ShardEntry
from evofeed.store.refs import read_ref
from evofeed.store.storage import open_storage


def parent_of(dataset_uri: str, ref: str) -> str | None:
    """The snapshot a ref points at now, None if there is no such ref yet."""
    try:
        return read_ref(open_storage(dataset_uri), ref).digest
    except DatasetMissing:
        return None


def missing_shards(ledger: Ledger, job: JobRow) -> list[str]:
    """Units that count as done but whose shard is gone (deleted, or collected as garbage)."""
    done = [unit for unit in ledger.units(job.job_id, states.DONE) if unit["shard"]]
    if not done:
        return []
    there = {item.key for item in open_storage(job.dataset_uri).files("shards/")}
    return [u["unit_id"] for u in done if f"shards/{u['shard']['name']}" not in there]


def publish(
    ledger: Ledger,
    job: JobRow,
    broken: list[dict[str, Any]],
    settings: dict[str, Any],
    options: JobOptions,
) -> str:
    """Commit every shard of a job as one snapshot and move the ref; returns its digest.

    The parent was fixed when the job began, so a second try, after a crash at any
    point of the first, commits the same snapshot. If somebody else moved the ref
    meanwhile, this run fails, and the next one takes what is there as its parent.

    Raises:
        RefConflict: somebody else moved the ref while the job ran.
    """
    try:
        return _commit(ledger, job, broken, settings, options)
    except RefConflict as error:
        now = parent_of(job.dataset_uri, options.ref)
        ledger.set_job(job.job_id, parent=now)
        if now is not None and now == job.snapshot:  # our own earlier result, now bettered
            return _commit(ledger, ledger.job(job.job_id), broken, settings, options)
        raise RefConflict(
            f"{error.message}; nothing was published and nothing is lost: "
            "run the same command again to publish on top of what is there now",
            path=error.path,
        ) from error


def _commit(
    ledger: Ledger,
    job: JobRow,
    broken: list[dict[str, Any]],
    settings: dict[str, Any],
    options: JobOptions,
) -> str:
    writer = DatasetWriter(job.dataset_uri)
    for unit in ledger.units(job.job_id, states.DONE):
        if unit["shard"]:
            writer.add_shard(ShardEntry.from_dict(unit["shard"]))
    known = [{name: value for name, value in chain.items() if value} for chain in broken]
    dropped = [{"reason": chain.pop("message"), **chain} for chain in known]
    snapshot = writer.commit(
        options.ref,
        expect=job.parent,
        config=settings,
        dropped=dropped,
        cluster_sizes=_cluster_sizes(ledger, job, options.clusters) if options.clusters else None,
    )
    return snapshot.digest


def _cluster_sizes(ledger: Ledger, job: JobRow, path: str) -> dict[str, int]:
    """Cluster size of each record: by chain id whatever its case, windows like their chain."""
    sizes = read_cluster_sizes(path)
    views = (job.arguments.get("crop") or {}).get("views", 1)
    found = {}
    for unit in ledger.units(job.job_id):
        for chain_id in unit["chain_ids"]:
            for name in (chain_id, *(f"{chain_id}.v{view}" for view in range(views))):
                found[name] = sizes.get(chain_id.upper(), -1)
    return found

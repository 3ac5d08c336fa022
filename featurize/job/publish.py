"""The one moment at which a job becomes visible."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import DatasetMissing, RefConflict
from evofeed.featurize.job import tables as states
from evofeed.featurize.job.ledger import Ledger
from evofeed.featurize.job.options import JobOptions
from evofeed.featurize.job.tables import JobRow
from evofeed.store import DatasetWriter, ShardEntry, Snapshot
from evofeed.store.inner import (
    MoveRef,
    Storage,
    canonical,
    groups_of,
    join_chains,
    move_ref,
    open_storage,
    part_key,
    read_part,
    read_ref,
    shard_key,
    sweep,
)

Unit = Mapping[str, Any]
"""A row of the ledger's units that has a shard: `ShardEntry.to_dict()`, the `records` in it,
the `templates` it was made of (`template_use.remembered`), and its `home` once it was joined
with others: that shard, and `of` which units."""


ShardAt = tuple[str, int]


def parent_of(dataset_uri: str, ref: str) -> str | None:
    """The snapshot a ref points at now, None if there is no such ref yet."""
    try:
        return read_ref(open_storage(dataset_uri), ref).digest
    except DatasetMissing:
        return None


def missing_shards(ledger: Ledger, job: JobRow) -> list[str]:
    """Units that count as done but whose chains are gone (deleted, or collected as garbage)."""
    done = _with_shards(ledger, job)
    there = _shards_there(open_storage(job.dataset_uri)) if done else set()
    return [unit["unit_id"] for unit in done if not _places(unit, there)]


def publish(
    ledger: Ledger,
    job: JobRow,
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

    Args:
        ledger: of the job.
        job: a row of it.
        broken: chains that are left out, and why.
        settings: how the chains were made, for the manifest.
        options: the ref, and the size of shards.
        clusters: size of each chain's sequence cluster, for the index.

    Raises:
        RefConflict: somebody else moved the ref while the job ran.
    """
    known = [{name: value for name, value in chain.items() if value} for chain in broken]
    dropped = [{"reason": chain.pop("message"), **chain} for chain in known]

    def commit(parent: str | None) -> Snapshot:
        writer = DatasetWriter(job.dataset_uri)
        for entry in _joined(ledger, job, options.shard_nbytes):
            writer.add_shard(entry)
        return writer.commit(
            options.ref, expect=parent, config=settings, dropped=dropped, move=move,
            cluster_sizes=_of_records(job, clusters) if clusters is not None else None,
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


def drop_joined(ledger: Ledger, job: JobRow, lease: str) -> None:
    """Remove the shards of units whose chains a published shard holds now."""
    storage = open_storage(job.dataset_uri)
    there = _shards_there(storage)
    keys = []
    for unit in _with_shards(ledger, job):
        shard, home = unit["shard"], unit["shard"].get("home")
        if home and _at(home) in there and _at(shard) in there - {_at(home)}:
            keys += [shard_key(shard["name"]), part_key(shard["name"])]
    if keys:
        sweep(storage, keys, job=lease)


def _joined(ledger: Ledger, job: JobRow, nbytes: int) -> list[ShardEntry]:
    """The units' chains in shards of about `nbytes`: a function of the units alone.

    Killed on the way and run again, the same shards are made again, or found.
    """
    storage = open_storage(job.dataset_uri)
    there = _shards_there(storage)
    # By name and not by cost: a unit that grows stays where it is, and so do the joined shards.
    units = sorted(_with_shards(ledger, job), key=lambda unit: unit["chain_ids"])
    entries = []
    for group in groups_of((unit["shard"]["nbytes"] for unit in units), nbytes):
        members = [units[number] for number in group]
        if len(members) == 1 and _at(members[0]["shard"]) in there:
            entries.append(ShardEntry.from_dict(members[0]["shard"]))
            continue
        names = [unit["shard"]["name"] for unit in members]
        key = hashlib.sha256("\n".join(names).encode()).hexdigest()
        home = members[0]["shard"].get("home")
        if not home or home["of"] != key or _at(home) not in there:
            rows = canonical([_rows_of(storage, unit, there) for unit in members])
            home = join_chains(storage, rows).to_dict() | {"of": key}
            ledger.set_home(job.job_id, [unit["unit_id"] for unit in members], home)
        entries.append(ShardEntry.from_dict(home))
    return entries


def _rows_of(storage: Storage, unit: Unit, there: set[ShardAt]) -> pa.Table:
    """Index rows of a unit's chains, wherever they lie now."""
    table = read_part(storage, ShardEntry.from_dict(_places(unit, there)[0]))
    if "records" not in unit["shard"]:
        return table
    return table.filter(pc.is_in(table["chain_id"], pa.array(unit["shard"]["records"], pa.utf8())))


def _places(unit: Unit, there: set[ShardAt]) -> list[dict[str, Any]]:
    """Shards that hold a unit's chains: its own, and the one it was joined into."""
    shard = unit["shard"]
    known = [shard, *([shard["home"]] if shard.get("home") else [])]
    return [place for place in known if _at(place) in there]


def _with_shards(ledger: Ledger, job: JobRow) -> Sequence[Unit]:
    return [unit for unit in ledger.units(job.job_id, states.DONE) if unit["shard"]]


def _shards_there(storage: Storage) -> set[ShardAt]:
    return {(item.key.removeprefix("shards/"), item.nbytes) for item in storage.files("shards/")}


def _at(place: Mapping[str, Any]) -> ShardAt:
    """A shard's name and size: one that was cut short is not there."""
    return place["name"], place["nbytes"]


def _of_records(job: JobRow, clusters: Mapping[str, int]) -> dict[str, int]:
    """Cluster size of each record: windows like their chain."""
    views = (job.arguments.get("crop") or {}).get("views", 1)
    return {
        name: size
        for chain_id, size in clusters.items()
        for name in (chain_id, *(f"{chain_id}.v{view}" for view in range(views)))
    }

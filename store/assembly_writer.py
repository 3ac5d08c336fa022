"""Adding complexes to a snapshot: their table, and the records that only they have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from evofeed.base.errors import FeatureError
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.assemblies import ASSEMBLY_SCHEMA, MEMBERS, TABLE, structure_of
from evofeed.store.dataset import Dataset
from evofeed.store.encode import encode_record
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical, index_bytes
from evofeed.store.manifest import Part, canonical_json, check_name
from evofeed.store.refs import move_ref
from evofeed.store.shard import read_part
from evofeed.store.writer import SHARD_NBYTES, ShardFiller, write_snapshot

PAIRING: Final = ".pairing"
"""Suffix of the name of a chain's rows to pair."""


def pairing_id(chain_id: str) -> str:
    """Name of the rows to pair of a chain; a digest if the suffix would make it too long."""
    name = f"{chain_id}{PAIRING}"
    if len(name) <= 128:
        return name
    return f"{hashlib.sha256(chain_id.encode()).hexdigest()[:32]}{PAIRING}"


def add_assemblies(
    dataset: Dataset,
    records: Iterable[AssemblyRecord],
    *,
    ref: str = "main",
    dropped: Iterable[Mapping[str, Any]] = (),
) -> Snapshot:
    """Replaces the complexes of the snapshot, and moves `ref` to the new one.

    Args:
        dataset: the snapshot, with the chains of every complex; `ref` is at it.
        dropped: complexes that could not be made, each `{"assembly_id", "reason", ...}`.

    Raises:
        ChainMissing: a chain of a complex is not in the snapshot.
        FeatureError: a record does not fit its chains.
        RefConflict: the ref moved meanwhile; nothing is published.
        ValueError: two records of one name.
    """
    rows: dict[str, dict[str, Any]] = {}
    shards = ShardFiller(dataset.storage, SHARD_NBYTES)
    member_ids: set[str] = set()
    for record in records:
        if check_name(record.assembly_id, "assembly id") in rows:
            raise ValueError(f"assembly {record.assembly_id} was added before")
        _check_chains(dataset, record.validate())
        rows[record.assembly_id] = describe_assembly(record)
        for member in _members(record):
            if member.chain_id not in member_ids:
                member_ids.add(member.chain_id)
                shards.put(member.chain_id, encode_record(member))
    shards.flush()
    entries = list(shards.entries.values())
    storage, manifest = dataset.storage, dataset.manifest
    members = canonical([read_part(storage, entry) for entry in entries])
    table = pa.Table.from_pylist([rows[name] for name in sorted(rows)], schema=ASSEMBLY_SCHEMA)
    config = {name: value for name, value in manifest.config.items() if name != "assemblies"}
    left_out = sorted((dict(item) for item in dropped), key=canonical_json)
    if left_out:
        config["assemblies"] = {"dropped": left_out}
    files = {TABLE: index_bytes(table), MEMBERS: index_bytes(members)} if rows else {}
    snapshot = write_snapshot(
        storage,
        dataset.index,
        manifest.shards,
        base=dataset,
        config=config,
        assemblies=Part(files, len(rows), tuple(entries)),
    )
    move_ref(storage, ref, snapshot.digest, dataset.digest)
    return snapshot


def _check_chains(dataset: Dataset, record: AssemblyRecord) -> None:
    for chain in record.chains:
        length = int(dataset.spans.dims[dataset.row(chain.chain_id)][0])
        if length != chain.num_res:
            raise FeatureError(
                f"chain {chain.chain_id} has {length} residues in the dataset and "
                f"{chain.num_res} here",
                item=record.assembly_id,
            )


def describe_assembly(record: AssemblyRecord) -> dict[str, Any]:
    """A complex's row of the table."""
    copies = [len(names) for names in record.copies]
    return {
        "assembly_id": record.assembly_id,
        "chain_ids": [chain.chain_id for chain in record.chains],
        "pairing_ids": [pairing_id(rows.chain_id) if rows else "" for rows in record.pairing],
        "copies": copies,
        "author_chains": [name for _, name in record.members],
        "stoichiometry": record.stoichiometry,
        "num_chains": record.num_chains,
        "num_entities": len(record.chains),
        "num_res": record.num_res,
        "num_interface": record.num_interface,
        "resolution": record.resolution,
        "release_date": record.release_date,
        "method": record.method,
        "is_distillation": record.is_distillation,
        "has_structure": record.all_atom_positions is not None,
        "cost": sum(
            chain.num_res * (chain.num_alignments + (rows.num_alignments if rows else 0))
            + 37 * chain.num_res * number
            for chain, rows, number in zip(record.chains, record.pairing, copies, strict=True)
        ),
        "dropped": list(record.dropped),
    }


def _members(record: AssemblyRecord) -> Iterator[ChainRecord]:
    """Records that only the complex has: coordinates of the copies, and rows to pair."""
    yield copies_record(record)
    for rows in record.pairing:
        if rows is not None:
            yield rows.replace(chain_id=pairing_id(rows.chain_id))


def copies_record(record: AssemblyRecord) -> ChainRecord:
    """All chains of a complex concatenated, with coordinates; its alignment is the query alone."""
    return ChainRecord.of_query(
        record.assembly_id,
        "".join(chain.sequence for chain, _ in record.members),
        record.aatype,
        np.concatenate([chain.residue_index for chain, _ in record.members]),
        description=",".join(name for _, name in record.members),
        **structure_of(record),
    )

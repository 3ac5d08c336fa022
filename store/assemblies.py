"""Assemblies of a snapshot: a table of them, and the records that belong to them alone.

An assembly's chains are chain records of the same snapshot. What only it has (the coordinates of
every copy, the rows to pair) are *members*: chain records too, in shards of the same format, with
an index of their own. FORMAT.md says the bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from evofeed.assembly_record import AssemblyRecord
from evofeed.errors import ChainMissing, FeatureError, ShardCorrupt
from evofeed.features import ChainRecord
from evofeed.residues import GAP
from evofeed.store.encode import encode_record
from evofeed.store.history import Snapshot
from evofeed.store.index import canonical, index_bytes, read_index, read_table
from evofeed.store.layout import CHAINS_VERSION, PackedColumn
from evofeed.store.manifest import ShardEntry, canonical_json, check_name
from evofeed.store.refs import move_ref
from evofeed.store.shard import read_part, shard_bytes, store_shard
from evofeed.store.spans import Spans
from evofeed.store.storage import Storage
from evofeed.store.writer import SHARD_NBYTES, write_snapshot

if TYPE_CHECKING:
    from evofeed.store.dataset import Dataset

TABLE: Final = "assemblies.arrow"
MEMBERS: Final = "members.arrow"
PAIRING: Final = ".pairing"
"""What the name of a chain's rows to pair ends with."""
ASSEMBLY_FIELDS: Final = (
    ("assembly_id", pa.utf8()),
    ("chain_ids", pa.list_(pa.utf8())),
    ("pairing_ids", pa.list_(pa.utf8())),
    ("copies", pa.list_(pa.int32())),
    ("author_chains", pa.list_(pa.utf8())),
    ("stoichiometry", pa.utf8()),
    ("num_chains", pa.int32()),
    ("num_entities", pa.int32()),
    ("num_res", pa.int32()),
    ("num_interface", pa.int32()),
    ("resolution", pa.float32()),
    ("release_date", pa.utf8()),
    ("method", pa.utf8()),
    ("is_distillation", pa.bool_()),
    ("has_structure", pa.bool_()),
    ("cost", pa.int64()),
    ("dropped", pa.list_(pa.utf8())),
)
"""Rows are sorted by `assembly_id`. `chain_ids`, `pairing_ids` (empty for none) and `copies` run
over entities, `author_chains` over all chains, entity by entity."""


def assembly_schema() -> pa.Schema:
    """Schema of the table of assemblies."""
    fields = [pa.field(name, kind, nullable=False) for name, kind in ASSEMBLY_FIELDS]
    return pa.schema(
        fields,
        metadata={
            "evofeed.format": "evofeed-assemblies",
            "evofeed.version": "{}.{}".format(*CHAINS_VERSION),
        },
    )


def pairing_id(chain_id: str) -> str:
    """Name of the rows to pair of a chain; of a name too long for that, by its digest."""
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
    shard_nbytes: int = SHARD_NBYTES,
) -> Snapshot:
    """The snapshot with these complexes in place of those it had, and `ref` moved to it.

    Args:
        dataset: the snapshot, which holds the chains of every complex; `ref` is at it.
        records: the complexes, each once.
        ref: name to move.
        dropped: complexes that could not be made, each `{"assembly_id", "reason", ...}`.
        shard_nbytes: where a new shard of members begins.

    Raises:
        ChainMissing: a chain of a complex is not in the snapshot.
        FeatureError: a record does not fit its chains.
        RefConflict: the ref moved meanwhile; nothing is published.
        ValueError: two records of one name.
    """
    rows: dict[str, dict[str, Any]] = {}
    entries = list(_written(dataset, records, rows, shard_nbytes))
    storage, manifest = dataset.storage, dataset.manifest
    members = canonical([read_part(storage, entry) for entry in entries])
    table = pa.Table.from_pylist([rows[name] for name in sorted(rows)], schema=assembly_schema())
    known = set(dataset.index["shard"].unique().to_pylist())
    config = {name: value for name, value in manifest.config.items() if name != "assemblies"}
    left_out = sorted((dict(one) for one in dropped), key=canonical_json)
    if left_out:
        config["assemblies"] = {"dropped": left_out}
    snapshot = write_snapshot(
        storage,
        dataset.index,
        {entry.name: entry for entry in (*_of(manifest.shards, known), *entries)}.values(),
        parent=dataset.digest,
        config=config,
        dropped=manifest.dropped,
        assemblies={TABLE: index_bytes(table), MEMBERS: index_bytes(members)} if rows else None,
        num_assemblies=len(rows),
    )
    move_ref(storage, ref, snapshot.digest, dataset.digest)
    return snapshot


def _of(entries: Iterable[ShardEntry], names: set[str]) -> list[ShardEntry]:
    return [entry for entry in entries if entry.name in names]


def _written(
    dataset: Dataset,
    records: Iterable[AssemblyRecord],
    rows: dict[str, dict[str, Any]],
    shard_nbytes: int,
) -> Iterator[ShardEntry]:
    """Shards of members; fills `rows` of the table on the way."""
    pending: dict[str, dict[str, PackedColumn]] = {}
    taken: set[str] = set()
    size = 0
    for record in records:
        if check_name(record.assembly_id, "assembly id") in rows:
            raise ValueError(f"assembly {record.assembly_id} was added before")
        _check_chains(dataset, record.validate())
        rows[record.assembly_id] = describe_assembly(record)
        for member in _members(record):
            if member.chain_id in taken:
                continue
            taken.add(member.chain_id)
            pending[member.chain_id] = encode_record(member)
            size += sum(len(column.payload) for column in pending[member.chain_id].values())
            if size >= shard_nbytes:
                yield store_shard(dataset.storage, shard_bytes(pending))
                pending, size = {}, 0
    if pending:
        yield store_shard(dataset.storage, shard_bytes(pending))


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
    """What the table says about a complex."""
    copies = [len(names) for names in record.copies]
    return {
        "assembly_id": record.assembly_id,
        "chain_ids": [chain.chain_id for chain in record.chains],
        "pairing_ids": [pairing_id(rows.chain_id) if rows else "" for rows in record.pairing],
        "copies": copies,
        "author_chains": [name for names in record.copies for name in names],
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
    """What only the complex has: its copies' coordinates, and its chains' rows to pair."""
    yield copies_record(record)
    for rows in record.pairing:
        if rows is not None:
            yield rows.replace(chain_id=pairing_id(rows.chain_id))


def copies_record(record: AssemblyRecord) -> ChainRecord:
    """All chains of a complex in a row, with their coordinates and no alignment but themselves."""
    pairs = [
        (chain, name)
        for chain, names in zip(record.chains, record.copies, strict=True)
        for name in names
    ]
    aatype = np.concatenate([chain.aatype for chain, _ in pairs])
    none, total = np.zeros(0, np.int32), len(aatype)
    return ChainRecord(
        chain_id=record.assembly_id,
        sequence="".join(chain.sequence for chain, _ in pairs),
        description=",".join(name for _, name in pairs),
        aatype=aatype,
        residue_index=np.concatenate([chain.residue_index for chain, _ in pairs]),
        msa=aatype[None],
        deletion_row=none,
        deletion_column=none,
        deletion_count=none,
        msa_source=np.zeros(1, np.uint8),
        msa_sources=("query",),
        msa_species=("",),
        hhblits_profile_counts=np.eye(GAP + 1, dtype=np.int32)[aatype],
        all_atom_positions=record.all_atom_positions,
        all_atom_mask=record.all_atom_mask,
        template_aatype=np.zeros([0, total], np.uint8),
        template_all_atom_positions=np.zeros([0, total, 37, 3], np.float32),
        template_all_atom_mask=np.zeros([0, total, 37], np.uint8),
        template_center=np.zeros([0, 3], np.float32),
        template_sum_probs=np.zeros(0, np.float32),
        resolution=record.resolution,
        release_date=record.release_date,
        method=record.method,
        is_distillation=record.is_distillation,
    )


class Assemblies:
    """The complexes of a snapshot: a table of them, and how to read one."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        files = dataset.manifest.assemblies
        folder = f"snapshots/{dataset.digest}"
        if files is None:
            self.table, members = assembly_schema().empty_table(), canonical([])
        else:
            data = {
                name: _checked(dataset.storage, f"{folder}/{name}", files["files"][name]["sha256"])
                for name in (TABLE, MEMBERS)
            }
            self.table = read_table(
                data[TABLE], f"{dataset.uri}/{folder}/{TABLE}", "assemblies", assembly_schema()
            )
            members = read_index(data[MEMBERS], f"{dataset.uri}/{folder}/{MEMBERS}")
        self.members = Spans(dataset.storage, members)
        self.member_index = members
        """The index of the members, as that of the chains."""
        names = self.table["assembly_id"].to_pylist()
        self._rows = {name: row for row, name in enumerate(names)}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, assembly_id: object) -> bool:
        return assembly_id in self._rows

    def row(self, assembly_id: str) -> int:
        """Row of a complex in the table.

        Raises:
            ChainMissing: it is not in this snapshot.
        """
        if assembly_id not in self._rows:
            raise ChainMissing(f"no assembly {assembly_id!r} among {len(self)} of this snapshot")
        return self._rows[assembly_id]

    def __getitem__(self, assembly_id: str) -> AssemblyRecord:
        row = self.table.slice(self.row(assembly_id), 1).to_pylist()[0]
        whole = self._member(assembly_id)
        copies, at = [], 0
        for number in row["copies"]:
            copies.append(tuple(row["author_chains"][at : at + number]))
            at += number
        try:
            return AssemblyRecord(
                assembly_id=assembly_id,
                chains=tuple(self.dataset[chain] for chain in row["chain_ids"]),
                pairing=tuple(self._member(n) if n else None for n in row["pairing_ids"]),
                copies=tuple(copies),
                all_atom_positions=whole.all_atom_positions,
                all_atom_mask=whole.all_atom_mask,
                num_interface=row["num_interface"],
                resolution=whole.resolution,
                release_date=row["release_date"],
                method=row["method"],
                is_distillation=row["is_distillation"],
                dropped=tuple(row["dropped"]),
            ).validate()
        except FeatureError as error:
            raise ShardCorrupt(error.message, path=self.dataset.uri, item=assembly_id) from None

    def _member(self, name: str) -> ChainRecord:
        row = self.members.row(name)
        return self.members.decoder(row, self.members.read_span(row)).record()


def _checked(storage: Storage, key: str, sha256: str) -> bytes:
    data = storage.read(key)
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ShardCorrupt("it does not match the manifest's sha256", path=f"{storage.uri}/{key}")
    return bytes(data)

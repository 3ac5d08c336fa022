"""Assemblies of a snapshot: their table, and the records that only they have.

An assembly's chains are chain records of the same snapshot. Its *members* (the coordinates of every
copy, the rows to pair) are chain records too, in shards of the same format with a separate index.
FORMAT.md defines the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import ChainMissing
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
from evofeed.store.decode import Origin
from evofeed.store.index import (
    canonical,
    check_spans,
    index_bytes,
    read_index,
    read_table,
    table_schema,
)
from evofeed.store.layout import CHAINS_VERSION
from evofeed.store.manifest import Part
from evofeed.store.spans import RecordSpan, Spans, read_chain
from evofeed.store.storage import Storage

if TYPE_CHECKING:
    from evofeed.store.dataset import Dataset

TABLE: Final = "assemblies.arrow"
MEMBERS: Final = "members.arrow"
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
"""Rows are sorted by `assembly_id`. `chain_ids`, `pairing_ids` (empty for none) and `copies` have a
value for each entity, `author_chains` for each chain, entity by entity."""
ASSEMBLY_SCHEMA: Final = table_schema("assemblies", ASSEMBLY_FIELDS, CHAINS_VERSION)


def valid_assemblies(base: Dataset, table: pa.Table) -> tuple[Part, list[dict[str, Any]]]:
    """The complexes of `base` whose chains are all in a new index with the same sequences; and the
    other complexes, each with the reason."""
    rows, spans = base.assemblies.table.to_pylist(), Spans(base.storage, table)
    old_sums, new_sums = base.index["checksum"].to_pylist(), table["checksum"].to_pylist()
    new_rows = {name: row for row, name in enumerate(table["chain_id"].to_pylist())}
    faults: dict[str, str] = {}
    for name in {chain for row in rows for chain in row["chain_ids"]}:
        if name not in new_rows:
            faults[name] = "is gone"
        elif (
            old_sums[base.row(name)] != new_sums[new_rows[name]]
            and spans.record(new_rows[name]).sequence != base[name].sequence
        ):
            faults[name] = "has another sequence now"
    valid, dropped = [], []
    for row in rows:
        reasons = [f"chain {name} {faults[name]}" for name in row["chain_ids"] if name in faults]
        if reasons:
            dropped.append({"assembly_id": row["assembly_id"], "reason": "; ".join(reasons)})
        else:
            valid.append(row)
    names = {row["assembly_id"] for row in valid} | {n for row in valid for n in row["pairing_ids"]}
    index = base.assemblies.member_index
    members = index.filter(pc.is_in(index["chain_id"], pa.array(sorted(names), pa.utf8())))
    shards = set(members["shard"].unique().to_pylist())
    files = {
        TABLE: index_bytes(pa.Table.from_pylist(valid, schema=ASSEMBLY_SCHEMA)),
        MEMBERS: index_bytes(canonical([members])),
    }
    entries = tuple(entry for entry in base.manifest.shards if entry.name in shards)
    return Part(files if valid else {}, len(valid), entries), dropped


class AssemblySpan(NamedTuple):
    """Position of a complex: everything a reader needs, so that it opens no index."""

    assembly_id: str
    chains: tuple[RecordSpan, ...]
    """One of each entity."""
    pairing: tuple[RecordSpan | None, ...] = (None,)
    copies: tuple[tuple[str, ...], ...] = ()
    copies_record: RecordSpan | None = None
    """All chains with their coordinates; None for a single chain, which is a complex of one."""


def read_assembly(storage: Storage, span: AssemblySpan) -> AssemblyRecord:
    """A complex without `num_interface` and `dropped`, which only its table has.

    Raises:
        ShardCorrupt, ShardMissing: a record cannot be read; the records do not fit each other.
    """
    chains = tuple(read_chain(storage, chain) for chain in span.chains)
    if span.copies_record is None:
        return replace(AssemblyRecord.of_chain(chains[0]), **structure_of(chains[0]))
    with Origin(span.assembly_id, storage.uri).decoding("the complex is not valid"):
        return AssemblyRecord(
            assembly_id=span.assembly_id,
            chains=chains,
            pairing=tuple(rows and read_chain(storage, rows) for rows in span.pairing),
            copies=span.copies,
            **structure_of(read_chain(storage, span.copies_record)),
        ).validate()


def structure_of(record: ChainRecord | AssemblyRecord) -> dict[str, Any]:
    """Coordinates and their attributes, the fields that chains and complexes share."""
    names = "all_atom_positions all_atom_mask resolution release_date method is_distillation"
    return {name: getattr(record, name) for name in names.split()}


class Assemblies:
    """The complexes of a snapshot: their table, and their records by id."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        if dataset.manifest.assemblies is None:
            self.table, members = ASSEMBLY_SCHEMA.empty_table(), canonical([])
        else:
            table = dataset.snapshot_file(TABLE)
            self.table = read_table(*table, "assemblies", ASSEMBLY_SCHEMA)
            data, path = dataset.snapshot_file(MEMBERS)
            members = read_index(data, path)
            shards = {shard.name: shard.nbytes for shard in dataset.manifest.shards}
            check_spans(members, shards, path)
        self.members = Spans(dataset.storage, members)
        self.member_index = members
        """Index of the members, with the columns of the index of chains."""
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

    def span(self, assembly_id: str) -> AssemblySpan:
        """Position of a complex (raises ChainMissing)."""
        row = self._values(assembly_id)
        names, chains, members = iter(row["author_chains"]), self.dataset.spans, self.members
        return AssemblySpan(
            assembly_id,
            chains=tuple(chains.span(chains.row(name)) for name in row["chain_ids"]),
            pairing=tuple(members.span(members.row(n)) if n else None for n in row["pairing_ids"]),
            copies=tuple(tuple(islice(names, number)) for number in row["copies"]),
            copies_record=members.span(members.row(assembly_id)),
        )

    def __getitem__(self, assembly_id: str) -> AssemblyRecord:
        row = self._values(assembly_id)
        record = read_assembly(self.dataset.storage, self.span(assembly_id))
        return replace(record, num_interface=row["num_interface"], dropped=tuple(row["dropped"]))

    def _values(self, assembly_id: str) -> dict[str, Any]:
        row: dict[str, Any] = self.table.slice(self.row(assembly_id), 1).to_pylist()[0]
        return row

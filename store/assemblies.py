"""Assemblies of a snapshot: a table of them, and the records that belong to them alone.

An assembly's chains are chain records of the same snapshot. What only it has (the coordinates of
every copy, the rows to pair) are *members*: chain records too, in shards of the same format, with
an index of their own. FORMAT.md says the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from evofeed.base.errors import ChainMissing, FeatureError, ShardCorrupt
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.chain_record import ChainRecord
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
from evofeed.store.spans import Spans

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
"""Rows are sorted by `assembly_id`. `chain_ids`, `pairing_ids` (empty for none) and `copies` run
over entities, `author_chains` over all chains, entity by entity."""
ASSEMBLY_SCHEMA: Final = table_schema("assemblies", ASSEMBLY_FIELDS, CHAINS_VERSION)


def kept_assemblies(base: Dataset, table: pa.Table) -> tuple[Part, list[dict[str, Any]]]:
    """The complexes of a snapshot whose chains are all in the index that comes next, with the same
    sequences; and those that are not kept, each with the reason."""
    rows, spans = base.assemblies.table.to_pylist(), Spans(base.storage, table)
    there = {name: row for row, name in enumerate(table["chain_id"].to_pylist())}
    sums = [t["checksum"].to_pylist() for t in (base.index, table)]
    wrong: dict[str, str] = {}
    for name in {chain for row in rows for chain in row["chain_ids"]}:
        if name not in there:
            wrong[name] = "is gone"
        elif (
            sums[0][base.row(name)] != sums[1][there[name]]
            and spans.record(there[name]).sequence != base[name].sequence
        ):
            wrong[name] = "has another sequence now"
    kept, dropped = [], []
    for row in rows:
        faults = [f"chain {name} {wrong[name]}" for name in row["chain_ids"] if name in wrong]
        if faults:
            reason = "; ".join(faults)
            dropped.append({"assembly_id": row["assembly_id"], "reason": reason})
        else:
            kept.append(row)
    names = {row["assembly_id"] for row in kept} | {n for row in kept for n in row["pairing_ids"]}
    index = base.assemblies.member_index
    members = index.filter(pc.is_in(index["chain_id"], pa.array(sorted(names), pa.utf8())))
    shards = set(members["shard"].unique().to_pylist())
    files = {
        TABLE: index_bytes(pa.Table.from_pylist(kept, schema=ASSEMBLY_SCHEMA)),
        MEMBERS: index_bytes(canonical([members])),
    }
    entries = tuple(entry for entry in base.manifest.shards if entry.name in shards)
    return Part(files if kept else {}, len(kept), entries), dropped


class Assemblies:
    """The complexes of a snapshot: a table of them, and how to read one."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        if dataset.manifest.assemblies is None:
            self.table, members = ASSEMBLY_SCHEMA.empty_table(), canonical([])
        else:
            table = dataset.snapshot_file(TABLE)
            self.table = read_table(*table, "assemblies", ASSEMBLY_SCHEMA)
            data, path = dataset.snapshot_file(MEMBERS)
            members = read_index(data, path)
            check_spans(members, {one.name: one.nbytes for one in dataset.manifest.shards}, path)
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
        return self.members.record(self.members.row(name))

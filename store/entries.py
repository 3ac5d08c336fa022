"""Entries of a snapshot: full assemblies with ligands and nucleic acids, and their records.

`dataset.entries` has a table of the entries, a table of the chains and interfaces to sample
(`datapoints`), and reads records by id: entries, sections, alignments, molecules, components.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from evofeed.base.errors import ChainMissing, ShardCorrupt
from evofeed.protein.alignment import Alignment
from evofeed.protein.components import ComponentTable
from evofeed.protein.datapoints import cluster_of
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection
from evofeed.store.decode import Origin
from evofeed.store.entry_codecs import PROJECTS, decode_section
from evofeed.store.entry_shards import RECORDS_SCHEMA, decoded, facts_of, read_record_rows
from evofeed.store.index import TEXT, index_bytes, read_table, table_schema
from evofeed.store.layout import ENTRIES_VERSION, PackedColumn
from evofeed.store.manifest import NO_PART, Part, ShardEntry
from evofeed.store.shard import shard_key
from evofeed.store.spans import RecordSpan, origin_of, read_record
from evofeed.store.storage import Storage

if TYPE_CHECKING:
    from evofeed.store.dataset import Dataset

RECORDS: Final = "records.arrow"
TABLE: Final = "entries.arrow"
DATAPOINTS: Final = "datapoints.arrow"
ENTRY_FIELDS: Final = (
    ("entry_id", pa.utf8()),
    ("entry", pa.utf8()),
    ("assembly", pa.utf8()),
    ("deposit_date", pa.utf8()),
    ("release_date", pa.utf8()),
    ("earliest_date", pa.utf8()),
    ("revision_date", pa.utf8()),
    ("resolution", pa.float32()),
    ("methods", pa.list_(pa.utf8())),
    ("num_residues", pa.int32()),
    ("num_atoms", pa.int32()),
    ("alignments", pa.list_(pa.utf8())),
    *((f"tokens_{name}", pa.int32()) for name in PROJECTS),
    *((f"atoms_{name}", pa.int32()) for name in PROJECTS),
)
"""Rows are sorted by `entry_id`. Dates: the first, earliest and last of the history. `alignments`:
names of the alignments of its sequences. `tokens_` and `atoms_` are -1 for a project that does not
accept the entry."""
DATAPOINT_FIELDS: Final = (
    ("project", TEXT),
    ("entry", pa.int32()),
    ("chain_a", pa.int32()),
    ("chain_b", pa.int32()),
    ("kind_a", pa.int8()),
    ("kind_b", pa.int8()),
    ("cluster_a", TEXT),
    ("cluster_b", TEXT),
    ("entity_a", pa.int32()),
    ("entity_b", pa.int32()),
)
"""`entry`: row of the table of entries; `chain_b` of a single chain is -1, `cluster_b` empty."""
SCHEMAS: Final = {
    RECORDS: RECORDS_SCHEMA,
    TABLE: table_schema("entries", ENTRY_FIELDS, ENTRIES_VERSION),
    DATAPOINTS: table_schema("datapoints", DATAPOINT_FIELDS, ENTRIES_VERSION),
}
"""Schemas by name of the tables of entries in a snapshot."""


def span_of(row: dict[str, Any]) -> RecordSpan:
    """Span of the record in a row of the table of records."""
    key, starts = shard_key(row["shard"]), tuple(row["column_offsets"])
    names = ("kind", "record_id", "offset", "nbytes", "checksum")
    return RecordSpan(key=key, starts=starts, **{name: row[name] for name in names})


def record_spans(storage: Storage, entry: ShardEntry) -> list[RecordSpan]:
    """Spans of the records of a shard, which need not be part of a snapshot."""
    return [span_of(row) for row in read_record_rows(storage, entry)]


def read_value(storage: Storage, span: RecordSpan) -> Any:
    """A record decoded: an `EntryRecord`, an `Alignment`, molecules by name or a `ComponentTable`.

    Raises:
        ShardCorrupt, ShardMissing: as `read_record`; the bytes are not those of its kind.
    """
    return decoded(span.kind, read_record(storage, span), origin_of(storage, span))


def read_entry(
    storage: Storage, span: RecordSpan, project: str
) -> tuple[EntryRecord, RulesetSection]:
    """An entry and a project's section of it, by one ranged read.

    Raises:
        ShardCorrupt, ShardMissing: as `read_record`.
        ChainMissing: the project does not accept the entry.
    """
    columns, origin = read_record(storage, span), origin_of(storage, span)
    record = decoded("entry", columns, origin)
    if (section := section_of(columns, project, record, origin)) is None:
        raise ChainMissing(f"{project} does not take this entry", item=span.record_id)
    return record, section


def section_of(
    columns: Mapping[str, PackedColumn], project: str, record: EntryRecord, origin: Origin
) -> RulesetSection | None:
    """A project's section of an entry; None if it does not accept it (raises ShardCorrupt)."""
    with origin.decoding(f"the section of {project} is not valid"):
        return decode_section(columns, project, record)


def entry_files(rows: list[dict[str, Any]], clusters: Mapping[str, str]) -> dict[str, bytes]:
    """Tables of a snapshot's entries as files, by name, from rows of the table of records."""
    entries = [(row, facts_of(row)) for row in rows if row["kind"] == "entry"]
    table = [_entry_row(row["record_id"], facts) for row, facts in entries]
    points = [
        point
        for project in PROJECTS
        for number, (_, facts) in enumerate(entries)
        for point in _datapoints(project, number, facts, clusters)
    ]
    tables = {RECORDS: rows, TABLE: table, DATAPOINTS: points}
    return {
        name: index_bytes(pa.Table.from_pylist(tables[name], schema=schema))
        for name, schema in SCHEMAS.items()
    }


def _entry_row(entry_id: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    dates, projects = facts["release_dates"], facts["projects"]
    return {
        "entry_id": entry_id,
        **{name: facts[name] for name in ("entry", "assembly", "deposit_date", "methods")},
        "release_date": dates[0] if dates else "",
        "earliest_date": min(dates, default=""),
        "revision_date": dates[-1] if dates else "",
        "resolution": float("nan") if facts["resolution"] is None else facts["resolution"],
        "num_residues": facts["num_residues"],
        "num_atoms": facts["num_atoms"],
        "alignments": facts["alignments"],
        **{f"tokens_{p}": projects[p]["num_tokens"] if p in projects else -1 for p in PROJECTS},
        **{f"atoms_{p}": projects[p]["num_atoms"] if p in projects else -1 for p in PROJECTS},
    }


def _datapoints(
    project: str, entry: int, facts: Mapping[str, Any], clusters: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    section = facts["projects"].get(project)
    if section is None:
        return
    chains = {
        row: (kind, cluster_of(key, clusters), entity)
        for row, kind, key, entity in section["chains"]
    }
    for row_a, row_b in [*([row, -1] for row in chains), *section["interfaces"]]:
        a, b = chains[row_a], chains.get(row_b, (-1, "", -1))
        yield {
            "project": project,
            "entry": entry,
            **{"chain_a": row_a, "kind_a": a[0], "cluster_a": a[1], "entity_a": a[2]},
            **{"chain_b": row_b, "kind_b": b[0], "cluster_b": b[1], "entity_b": b[2]},
        }


class Entries:
    """The entries of a snapshot; most snapshots have none."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        tables = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
        if dataset.manifest.entries is not None:
            for name, schema in SCHEMAS.items():
                data, path = dataset.snapshot_file(name)
                tables[name] = read_table(data, path, name.removesuffix(".arrow"), schema)
        self.records, self.table, self.datapoints = tables.values()
        sizes = {entry.name: entry.nbytes for entry in dataset.manifest.shards}
        spans = (self.records[name].to_pylist() for name in ("shard", "offset", "nbytes"))
        for shard, offset, nbytes in zip(*spans, strict=True):
            if offset < 0 or nbytes < 0 or offset + nbytes > sizes.get(shard, -1):
                raise ShardCorrupt(f"a record leaves its shard {shard}", path=dataset.uri)
        kinds, names = self.records["kind"].to_pylist(), self.records["record_id"].to_pylist()
        self._rows = {key: row for row, key in enumerate(zip(kinds, names, strict=True))}

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table["entry_id"].to_pylist())

    def __contains__(self, entry_id: object) -> bool:
        return ("entry", entry_id) in self._rows

    def __getitem__(self, entry_id: str) -> EntryRecord:
        record: EntryRecord = self._read("entry", entry_id)
        return record

    def span(self, kind: str, record_id: str) -> RecordSpan:
        """Span of a record in its shard.

        Raises:
            ChainMissing: it is not in this snapshot.
        """
        if (kind, record_id) not in self._rows:
            raise ChainMissing(f"no {kind} {record_id!r} in this snapshot of {len(self)} entries")
        return span_of(self.records.slice(self._rows[kind, record_id], 1).to_pylist()[0])

    def names(self, kind: str) -> list[str]:
        """Ids of the records of a kind."""
        return [name for record_kind, name in self._rows if record_kind == kind]

    def section(self, entry_id: str, project: str) -> RulesetSection:
        """A project's section of an entry.

        Raises:
            ChainMissing: no such entry, or the project does not accept it.
            ShardCorrupt: it is damaged.
        """
        return read_entry(self.dataset.storage, self.span("entry", entry_id), project)[1]

    def alignment(self, name: str) -> Alignment:
        """An alignment by the digest of its sequence (`evofeed.protein.datapoints`)."""
        alignment: Alignment = self._read("alignment", name)
        return alignment

    def molecules(self, project: str) -> dict[str, Molecule]:
        """Reference molecules of a project, by name."""
        molecules: dict[str, Molecule] = self._read("molecules", project)
        return molecules

    def components(self) -> ComponentTable:
        """Definitions of the chemical components of the entries."""
        components: ComponentTable = self._read("components", "components")
        return components

    def part(self, entries: Collection[str]) -> Part:
        """Selected entries with all records that belong to them, for another snapshot.

        Args:
            entries: names as in the column `entry`, all assemblies of each.
        """
        mask = np.isin(self.table["entry"].to_pylist(), list(entries))
        if not mask.any():
            return NO_PART
        table = self.table.filter(pa.array(mask))
        names = set(table["entry_id"].to_pylist())
        retained = [kind != "entry" or name in names for kind, name in self._rows]
        records = self.records.filter(pa.array(retained))
        points = self.datapoints.filter(pa.array(mask[self.datapoints["entry"].to_numpy()]))
        new_rows = (np.cumsum(mask) - 1)[points["entry"].to_numpy()].astype(np.int32)
        column = points.schema.get_field_index("entry")
        points = points.set_column(column, points.schema.field(column), pa.array(new_rows))
        tables = {RECORDS: records, TABLE: table, DATAPOINTS: points}
        files = {name: index_bytes(rows.combine_chunks()) for name, rows in tables.items()}
        live = set(records["shard"].to_pylist())
        shards = tuple(shard for shard in self.dataset.manifest.shards if shard.name in live)
        return Part(files, table.num_rows, shards)

    def _read(self, kind: str, record_id: str) -> Any:
        return read_value(self.dataset.storage, self.span(kind, record_id))

    def spans(self) -> list[RecordSpan]:
        """Spans of all records, in the order of the shards' bytes."""
        spans = map(span_of, self.records.to_pylist())
        return sorted(spans, key=lambda span: (span.key, span.offset))

    def check(self, span: RecordSpan) -> None:
        """Read and decode a record and its sections (raises StoreError)."""
        storage = self.dataset.storage
        columns, origin = read_record(storage, span), origin_of(storage, span)
        value = decoded(span.kind, columns, origin)
        for project in PROJECTS if span.kind == "entry" else ():
            section_of(columns, project, value, origin)

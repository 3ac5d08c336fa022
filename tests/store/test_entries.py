"""Entries in the store: exact round trips, errors that name damage, other contents unchanged."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conftest import evofeed
from tests.featurize.records.test_entry import components, prepared
from tests.store.records import published, random_record

from evofeed.base.errors import ChainMissing, ShardCorrupt
from evofeed.featurize.entries.alignments import read_alignment
from evofeed.featurize.entries.molecules import component_molecule
from evofeed.protein.alignment import Alignment
from evofeed.protein.assembly_record import AssemblyRecord
from evofeed.protein.entry_record import Dropped, EntryRecord, Link, LinkEnd
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection
from evofeed.store import (
    Dataset,
    ShardEntry,
    Snapshot,
    add_assemblies,
    add_entries,
    copy_dataset,
    gc,
    remove_chains,
    write_records,
)
from evofeed.store.decode import Origin
from evofeed.store.entries import read_record, read_value, span_of
from evofeed.store.entry_codecs import (
    decode_section,
    encode_alignment,
    encode_entry,
    encode_molecules,
)
from evofeed.store.entry_shards import decoded
from evofeed.store.opening import open_storage
from evofeed.synth.entries import entry_cif

NAME = "a" * 64
ALIGNMENT = (
    ">q\nACDEFGHIKL\n>tr|A0A000|A0A000_HUMAN/1-9\nAC{0}DEF-HIKL\n>x\nACDEFGHXKL\n>q\nACDEFGHIKL\n"
)


@functools.cache
def synthetic_entry() -> tuple[EntryRecord, RulesetSection]:
    """A synthetic entry after preparation, with values in every kind of column."""
    entry = prepared(entry_cif("made", 0, 6))
    record, section = entry.record, entry.sections["openfold3"]
    rows, residues = np.arange(record.num_atoms), np.arange(record.num_residues)
    end = LinkEnd(
        asym="A", seq="1", component="LYS", atom="CB", altloc="", author=("A", "1", ""),
        symmetry="1_555", residue=0,
    )  # fmt: skip
    dropped = (Dropped(what="atom", chain="3", component="LIG", reason="a hydrogen"),)
    record = dataclasses.replace(
        record,
        release_dates=("2020-02-01", "2021-01-01"),
        links=(Link(kind="covale", ends=(end, end), length=1.5),),
        dropped=dropped,
        residue_insertion=np.where(residues % 5, "", "A"),
        atom_charge=(rows % 3 - 1).astype(np.int32),
        atom_altloc=np.where(rows == 2, ord("A"), 0).astype(np.int32),
        atom_occupancy=np.where(rows == 2, 0.5, 1.0),
    )
    return record, dataclasses.replace(section, dropped=dropped)


@functools.cache
def synthetic_alignment() -> Alignment:
    """Rows of two sources, some of them equal, with species and deletions."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{name}.a3m") for name in ("mgnify_hits", "uniprot_hits")]
        for number, file in enumerate(files):
            file.write_text(ALIGNMENT.format("w" * (number * 300)))
        return dataclasses.replace(read_alignment([*map(str, files)]), name=NAME)


def synthetic_molecule() -> Molecule:
    return component_molecule(components()["LIG"], 3).molecule


def assert_equal(actual: Any, expected: Any) -> None:
    """All fields are equal; integers may have a narrower dtype."""
    for name in type(expected).__dataclass_fields__:
        value, target = getattr(actual, name), getattr(expected, name)
        same = np.array_equal(value, target) if isinstance(target, np.ndarray) else value == target
        assert same, name


def entry_shard(uri: Path | str, record: EntryRecord) -> ShardEntry:
    columns = encode_entry(record, {"openfold3": synthetic_entry()[1]})
    return write_records(str(uri), "entry", {"made-1": columns})


def synthetic_dataset(uri: str, record: EntryRecord | None = None) -> Snapshot:
    molecules = encode_molecules({"LIG": synthetic_molecule()})
    shards = [
        entry_shard(uri, record or synthetic_entry()[0]),
        write_records(uri, "alignment", {NAME: encode_alignment(synthetic_alignment())}),
        write_records(uri, "molecules", {"openfold3": molecules}),
    ]
    return add_entries(uri, shards)


def test_entry_section_alignments_and_molecules_come_back_as_they_were(tmp_path: Path) -> None:
    record, section = synthetic_entry()
    digests = {synthetic_dataset(str(tmp_path / name)).digest for name in "ab"}
    assert len(digests) == 1
    entries = Dataset.open(str(tmp_path / "a")).entries
    assert list(entries) == ["made-1"] and "made-1" in entries
    assert_equal(entries["made-1"], record)
    assert_equal(entries.section("made-1", "openfold3"), section)
    assert_equal(entries.alignment(NAME), synthetic_alignment())
    assert_equal(entries.molecules("openfold3")["LIG"], synthetic_molecule())
    with pytest.raises(ChainMissing, match="boltz does not take"):
        entries.section("made-1", "boltz")
    with pytest.raises(ChainMissing, match="no entry 'other'"):
        entries["other"]
    exact = dataclasses.replace(record, atom_position=record.atom_position + 0.00004321)
    synthetic_dataset(str(tmp_path / "c"), exact)
    assert_equal(Dataset.open(str(tmp_path / "c")).entries["made-1"], exact)


def test_a_record_of_5000_atoms_takes_80_kilobytes_at_most() -> None:
    entry = prepared(entry_cif("made", 0, 335))
    columns = encode_entry(entry.record, entry.sections)
    assert entry.record.num_atoms >= 4960 and len(entry.sections) == 3
    assert sum(len(column.payload) for column in columns.values()) <= 80_000


def test_chains_complexes_and_entries_stay_when_the_others_come_and_go(tmp_path: Path) -> None:
    uri, record = str(tmp_path / "data"), synthetic_entry()[0]
    chains = [random_record(seed) for seed in range(3)]
    shard = entry_shard(uri, record)
    entries_only = add_entries(uri, [shard]).digest
    assert add_entries(uri, [shard], expect=entries_only).digest == entries_only
    published(uri, chains, expect=entries_only)
    pair = AssemblyRecord(
        assembly_id="2xyz", chains=(chains[1],), pairing=(None,), copies=(("A", "B"),)
    )
    with_pair = add_assemblies(Dataset.open(uri), [pair]).digest
    assert add_assemblies(Dataset.open(uri), [pair]).digest == with_pair
    assert add_entries(uri, [shard], expect=with_pair).digest == with_pair
    remove_chains(uri, ["chain0_A"])
    dataset = Dataset.open(uri)
    assert (len(dataset), list(dataset.assemblies)) == (2, ["2xyz"])
    assert "2 chains, 1 assembly, 1 entry " in evofeed("snapshots", "ls", uri).out
    assert_equal(dataset.entries["made-1"], record)
    published(uri, [random_record(7)], expect=dataset.digest)
    dataset = Dataset.open(uri)
    assert (len(dataset), list(dataset.entries)) == (1, ["made-1"])
    gc(uri, dry_run=False, grace=0.0)
    assert not dataset.verify(deep=True)
    copy_dataset(uri, str(tmp_path / "copy"))
    assert_equal(Dataset.open(str(tmp_path / "copy")).entries["made-1"], record)


def test_a_missing_part_is_made_again_from_the_shard(tmp_path: Path) -> None:
    record = synthetic_entry()[0]
    shard = entry_shard(tmp_path, record)
    for part in (tmp_path / "parts").iterdir():
        part.unlink()
    assert add_entries(str(tmp_path), [shard]).digest
    assert_equal(Dataset.open(str(tmp_path)).entries["made-1"], record)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("atom_row", 10**6),
        ("bond_atom", 10**6),
        ("interface", 9),
        ("chain_asym", -2),
        ("residue_atom", -1),
    ],
)
def test_rows_that_do_not_exist_are_refused_when_the_shard_is_written(
    tmp_path: Path, field: str, value: int
) -> None:
    record, section = synthetic_entry()
    wrong = getattr(section, field).copy()
    wrong.reshape(-1)[0] = value
    columns = encode_entry(record, {"openfold3": dataclasses.replace(section, **{field: wrong})})
    with pytest.raises(ShardCorrupt, match="made-1"):
        write_records(str(tmp_path), "entry", {"made-1": columns})


def test_an_alignment_of_another_shape_is_refused(tmp_path: Path) -> None:
    alignment = synthetic_alignment()
    wrong = alignment.row_letters.copy()
    wrong[0] = 999
    columns = encode_alignment(dataclasses.replace(alignment, row_letters=wrong))
    with pytest.raises(ShardCorrupt, match="row_letters"):
        write_records(str(tmp_path), "alignment", {NAME: columns})


@pytest.mark.parametrize("kind", ["entry", "alignment", "molecules"])
def test_a_flipped_byte_anywhere_in_a_record_is_a_typed_error(tmp_path: Path, kind: str) -> None:
    synthetic_dataset(str(tmp_path))
    entries = Dataset.open(str(tmp_path)).entries
    storage = open_storage(str(tmp_path))
    row = next(item for item in entries.records.to_pylist() if item["kind"] == kind)
    span = span_of(row)
    path = tmp_path / span.key
    original = path.read_bytes()
    for low, high in itertools.pairwise(span.starts):
        for offset in np.linspace(low, high - 1, 8).astype(int).tolist():
            data = bytearray(original)
            data[span.offset + offset] ^= 0x10
            path.write_bytes(data)
            with pytest.raises(ShardCorrupt) as fault:
                read_value(storage, span)
            assert fault.value.item == span.record_id and span.key in str(fault.value.path)
    assert [type(item) for item in Dataset.open(str(tmp_path)).verify()] == [ShardCorrupt]


@pytest.mark.parametrize("kind", ["entry", "alignment", "molecules"])
def test_bytes_that_are_wrong_under_a_right_checksum_are_a_typed_error_or_a_whole_value(
    tmp_path: Path, kind: str
) -> None:
    synthetic_dataset(str(tmp_path))
    entries = Dataset.open(str(tmp_path)).entries
    row = next(item for item in entries.records.to_pylist() if item["kind"] == kind)
    columns = read_record(open_storage(str(tmp_path)), span_of(row))
    rng, refused = np.random.default_rng(0), 0
    for name, column in columns.items():
        for _ in range(40 if column.payload else 0):
            data = bytearray(column.payload)
            data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
            bad = {**columns, name: dataclasses.replace(column, payload=memoryview(data))}
            try:
                value = decoded(kind, bad, Origin(row["record_id"], "shard"))
                if kind == "entry":
                    decode_section(bad, "openfold3", value)
            except (ShardCorrupt, ValueError, IndexError, KeyError, TypeError, OverflowError):
                refused += 1
    assert refused > 0

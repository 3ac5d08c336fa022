"""An entry as a job: the molecules of its assembly, with ligands and nucleic acids."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from evofeed.base.errors import ChainMissing
from evofeed.featurize.entries.targets import ONE_LETTER
from evofeed.featurize.export.jobs import Bond, Job, Kind, Molecule, chain_ids
from evofeed.featurize.export.rows import Rows, rows_of_alignment
from evofeed.protein.alignment import Alignment
from evofeed.protein.datapoints import RESTYPES, alignment_name
from evofeed.protein.entry_record import Entity, EntryRecord

POLYMERS: Final[dict[str, Kind]] = {
    "polypeptide(L)": "protein",
    "polyribonucleotide": "rna",
    "polydeoxyribonucleotide": "dna",
}
PAIRED_SOURCES: Final = ("uniprot_hits", "uniprot", "pairing")
"""Alignments whose rows are for pairing."""
_STANDARD: Final = {"protein": RESTYPES[:21], "rna": RESTYPES[21:26], "dna": RESTYPES[26:]}
"""Components with a letter of their own."""


def job_of_entry(name: str, record: EntryRecord, alignment: Callable[[str], Alignment]) -> Job:
    """The molecules of an entry's assembly; `alignment` returns an alignment by its name."""
    left_out: list[str] = []
    groups: dict[object, tuple[Molecule, list[tuple[int, int]]]] = {}
    for chain, copies in _chain_operators(record):
        molecule = _molecule(record, chain, alignment)
        if isinstance(molecule, str):
            left_out.append(f"chain {record.chain_label[chain]}: {molecule}")
            continue
        key = molecule.components or int(record.chain_entity[chain])
        groups.setdefault(key, (molecule, []))[1].extend((chain, copy) for copy in copies)
    ids = chain_ids()
    names = {member: next(ids) for _, members in groups.values() for member in members}
    return Job(
        name=name,
        molecules=tuple(
            dataclasses.replace(molecule, ids=tuple(names[member] for member in members))
            for molecule, members in groups.values()
        ),
        bonds=tuple(_bonds(record, names)),
        left_out=tuple(left_out),
    )


def _chain_operators(record: EntryRecord) -> list[tuple[int, list[int]]]:
    """Chains of the assembly, and the operators of their copies."""
    operators: dict[str, list[int]] = {}
    for copies in record.copies:
        for asym in copies.asyms:
            operators.setdefault(asym, []).extend(copies.operators)
    labels = enumerate(record.chain_label)
    if not record.copies:
        return [(chain, [0]) for chain, _ in labels]
    return [(chain, operators[label]) for chain, label in labels if label in operators]


def _molecule(
    record: EntryRecord, chain: int, alignment: Callable[[str], Alignment]
) -> Molecule | str:
    """A chain's molecule, or the reason a job cannot have it."""
    rows = slice(record.chain_residue[chain], record.chain_residue[chain + 1])
    entity = record.entities[record.chain_entity[chain]]
    if not entity.polymer:
        components = tuple(record.residue_name[rows].tolist())
        if "UNL" in components or "UNX" in components:
            return "an unknown ligand has no component"
        return Molecule(kind="ligand", ids=(), components=components)
    if entity.polymer not in POLYMERS:
        return f"{entity.polymer} is not protein, RNA or DNA"
    kind = POLYMERS[entity.polymer]
    letters, modifications = _letters(entity, kind)
    tables = _alignments(entity, kind, alignment)
    pairing = next((table for table in tables if table.name in PAIRED_SOURCES), None)
    return Molecule(
        kind=kind,
        ids=(),
        sequence=letters,
        modifications=modifications,
        alignments=tuple(table for table in tables if table.name not in PAIRED_SOURCES),
        pairing=pairing,
    )


def _letters(entity: Entity, kind: Kind) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Letters of a polymer, and its modified residues by position."""
    standard = {code: ONE_LETTER[code] for code in _STANDARD[kind]}
    canonical = entity.sequence if len(entity.sequence) == len(entity.monomers) else ""
    unknown = "X" if kind == "protein" else "N"
    letters = "".join(
        standard.get(code) or (canonical[row] if canonical else unknown)
        for row, code in enumerate(entity.monomers)
    )
    modified = [(row + 1, code) for row, code in enumerate(entity.monomers) if code not in standard]
    return letters, tuple(modified)


def _alignments(
    entity: Entity, kind: Kind, alignment: Callable[[str], Alignment]
) -> tuple[Rows, ...]:
    """The alignment of an entity by source; empty if it has none or another length."""
    if kind == "dna" or len(entity.sequence) != len(entity.monomers):
        return ()
    try:
        rows = alignment(alignment_name(entity.sequence, is_rna=kind == "rna"))
    except ChainMissing:
        return ()
    return tuple(rows_of_alignment(rows, source) for source in rows.sources)


def _bonds(record: EntryRecord, names: dict[tuple[int, int], str]) -> list[Bond]:
    """Covalent links, except within a polymer, once for every copy of both chains."""
    chains = record.residue_chain()
    bonds = []
    for link in record.links:
        rows = [end.residue for end in link.ends]
        in_two_copies = link.ends[0].symmetry != link.ends[1].symmetry
        if link.kind != "covale" or min(rows) < 0 or in_two_copies:
            continue
        first, second = (int(chains[row]) for row in rows)
        if first == second and record.entities[record.chain_entity[first]].polymer:
            continue
        for copy in sorted({copy for chain, copy in names if chain == first}):
            if (second, copy) in names:
                ends = [
                    (names[chain, copy], _number(record, chain, row), end.atom)
                    for chain, row, end in zip((first, second), rows, link.ends, strict=True)
                ]
                bonds.append((ends[0], ends[1]))
    return bonds


def _number(record: EntryRecord, chain: int, row: int) -> int:
    """Number of a residue in its molecule, from 1."""
    if record.entities[record.chain_entity[chain]].polymer:
        return int(record.residue_seq[row])
    return row - int(record.chain_residue[chain]) + 1

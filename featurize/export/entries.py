"""An entry as a job: the molecules of its assembly, ligands and nucleic acids too."""

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
"""Files whose rows are for pairing."""
_STANDARD: Final = {"protein": RESTYPES[:21], "rna": RESTYPES[21:26], "dna": RESTYPES[26:]}
"""Components that a letter stands for."""


def job_of_entry(name: str, record: EntryRecord, alignment: Callable[[str], Alignment]) -> Job:
    """The molecules of an entry's assembly; `alignment` gives one by its name."""
    left_out: list[str] = []
    groups: dict[object, tuple[Molecule, list[tuple[int, int]]]] = {}
    for chain, copies in _placed(record):
        made = _molecule(record, chain, alignment)
        if isinstance(made, str):
            left_out.append(f"chain {record.chain_label[chain]}: {made}")
            continue
        key = made.components or int(record.chain_entity[chain])
        groups.setdefault(key, (made, []))[1].extend((chain, copy) for copy in copies)
    ids = chain_ids()
    names = {member: next(ids) for _, members in groups.values() for member in members}
    return Job(
        name=name,
        molecules=tuple(
            dataclasses.replace(made, ids=tuple(names[member] for member in members))
            for made, members in groups.values()
        ),
        bonds=tuple(_bonds(record, names)),
        left_out=tuple(left_out),
    )


def _placed(record: EntryRecord) -> list[tuple[int, list[int]]]:
    """Chains of the assembly, and the operators that place their copies."""
    placed: dict[str, list[int]] = {}
    for row in record.copies:
        for asym in row.asyms:
            placed.setdefault(asym, []).extend(row.operators)
    labels = enumerate(record.chain_label)
    if not record.copies:
        return [(chain, [0]) for chain, _ in labels]
    return [(chain, placed[label]) for chain, label in labels if label in placed]


def _molecule(
    record: EntryRecord, chain: int, alignment: Callable[[str], Alignment]
) -> Molecule | str:
    """A chain's molecule, or why no job can have it."""
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
    letters, modifications = _spelled(entity, kind)
    files = _alignments(entity, kind, alignment)
    pairing = next((one for one in files if one.name in PAIRED_SOURCES), None)
    return Molecule(
        kind=kind,
        ids=(),
        sequence=letters,
        modifications=modifications,
        alignments=tuple(one for one in files if one.name not in PAIRED_SOURCES),
        pairing=pairing,
    )


def _spelled(entity: Entity, kind: Kind) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Letters of a polymer, and what stands where a component is none of the usual ones."""
    known = {code: ONE_LETTER[code] for code in _STANDARD[kind]}
    canonical = entity.sequence if len(entity.sequence) == len(entity.monomers) else ""
    unknown = "X" if kind == "protein" else "N"
    letters = "".join(
        known.get(code) or (canonical[row] if canonical else unknown)
        for row, code in enumerate(entity.monomers)
    )
    changed = [(row + 1, code) for row, code in enumerate(entity.monomers) if code not in known]
    return letters, tuple(changed)


def _alignments(
    entity: Entity, kind: Kind, alignment: Callable[[str], Alignment]
) -> tuple[Rows, ...]:
    """Its alignment file by file; none if the dataset has none, or of another length."""
    if kind == "dna" or len(entity.sequence) != len(entity.monomers):
        return ()
    try:
        found = alignment(alignment_name(entity.sequence, is_rna=kind == "rna"))
    except ChainMissing:
        return ()
    return tuple(rows_of_alignment(found, source) for source in found.sources)


def _bonds(record: EntryRecord, names: dict[tuple[int, int], str]) -> list[Bond]:
    """Covalent links but those along a polymer, once for every copy of both chains."""
    chains = record.residue_chain()
    found = []
    for link in record.links:
        rows = [end.residue for end in link.ends]
        apart = link.ends[0].symmetry != link.ends[1].symmetry  # of two copies
        if link.kind != "covale" or min(rows) < 0 or apart:
            continue
        one, other = (int(chains[row]) for row in rows)
        if one == other and record.entities[record.chain_entity[one]].polymer:
            continue
        for copy in sorted({copy for chain, copy in names if chain == one}):
            if (other, copy) in names:
                ends = [
                    (names[chain, copy], _number(record, chain, row), end.atom)
                    for chain, row, end in zip((one, other), rows, link.ends, strict=True)
                ]
                found.append((ends[0], ends[1]))
    return found


def _number(record: EntryRecord, chain: int, row: int) -> int:
    """Number of a residue in its molecule, from 1."""
    if record.entities[record.chain_entity[chain]].polymer:
        return int(record.residue_seq[row])
    return row - int(record.chain_residue[chain]) + 1

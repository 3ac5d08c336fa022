"""Datapoints of an entry that a loader may sample: chains, and pairs of chains in contact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.protein.entry_record import LIGAND, PROTEIN, RNA, EntryRecord
from evofeed.protein.ruleset_section import RulesetSection

RESTYPES: Final = (
    "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL UNK "
    "A G C U N DA DG DC DT DN"
).split()
"""Residues of one token in the order of AlphaFold 3's vocabulary."""
_PEPTIDE: Final = ("N", "C")
_PHOSPHODIESTER: Final = ("P", "O3'", "O5'")


def alignment_name(sequence: str, *, is_rna: bool = False) -> str:
    """Name of the alignment of a sequence: a digest of it and of what it is made of."""
    return hashlib.sha256(f"{'rna' if is_rna else 'protein'}:{sequence}".encode()).hexdigest()


def alignment_names(record: EntryRecord, section: RulesetSection) -> dict[int, str]:
    """Name of the alignment of every entity with a sequence, by the section's own number.

    Whether a dataset has an alignment of that name is another question.
    """
    found = {}
    for chain, kind in enumerate(section.chain_type.tolist()):
        entity = record.chain_entity[section.chain_asym[chain]]
        if kind in (PROTEIN, RNA) and entity >= 0 and record.entities[entity].sequence:
            sequence = record.entities[entity].sequence
            name = alignment_name(sequence, is_rna=kind == RNA)
            found[int(section.chain_entity[chain])] = name
    return found


def atomized_residues(section: RulesetSection) -> Bool[np.ndarray, " R"]:
    """Residues of one token an atom: ligands and non-standard ones; for OpenFold3 those with
    another link than a peptide's or a nucleic acid's, too."""
    residue, chain = section.atom_residue(), section.atom_chain()
    first = section.residue_atom[:-1]
    ligand = section.chain_type[chain[first]] == LIGAND if len(first) else np.zeros(0, bool)
    atomized: np.ndarray = ligand | ~np.isin(section.residue_name, RESTYPES)
    if section.project != "openfold3":
        return atomized
    one, two = section.bond_atom.T
    apart = (chain[one] != chain[two]) | (
        section.residue_index[residue[one]] != section.residue_index[residue[two]]
    )
    for link in (_PEPTIDE, _PHOSPHODIESTER):
        held = np.isin(section.atom_name, link)
        apart &= ~(held[one] & held[two])
    atomized[residue[one[apart]]] = True
    atomized[residue[two[apart]]] = True
    return atomized


def molecule_names(
    entry: str, section: RulesetSection
) -> tuple[Integer[np.ndarray, " R"], list[str]]:
    """Component of every residue, and the name of every component's reference molecule.

    A residue of a polymer is a component; a ligand is one, whatever its number of residues.
    """
    counts = np.diff(section.chain_residue)
    chain = np.repeat(np.arange(len(counts)), counts)
    ligand = section.chain_type == LIGAND
    fresh = np.ones(len(chain), bool)
    fresh[1:] = ~(ligand[chain[1:]] & (chain[1:] == chain[:-1]))
    first = np.flatnonzero(fresh)
    titles: list[str] = section.residue_name[first].tolist()
    for number in np.flatnonzero((ligand & (counts > 1))[chain[first]]).tolist():
        titles[number] = f"{entry}_{section.chain_entity[chain[first[number]]]}"
    return np.cumsum(fresh) - 1, titles


def num_tokens(section: RulesetSection) -> int:
    """Tokens of the valid chains."""
    valid = np.repeat(section.chain_valid, np.diff(section.chain_residue))
    sizes = np.diff(section.residue_atom)
    return int(np.where(atomized_residues(section), sizes, 1)[valid].sum())


def describe_section(record: EntryRecord, section: RulesetSection) -> dict[str, Any]:
    """What may be drawn of an entry in the eyes of a project, as plain values.

    `chains`: row, type, what its cluster is looked up by, and entity, of every valid chain;
    `interfaces`: valid chains in contact.
    """
    valid = np.flatnonzero(section.chain_valid)
    entities = section.chain_entity.tolist()
    there = np.isin(section.interface, valid).all(1)
    return {
        "num_tokens": num_tokens(section),
        "num_atoms": len(section.atom_name),
        "chains": [
            [row, int(section.chain_type[row]), _key(record, section, row), entities[row]]
            for row in valid.tolist()
        ],
        "interfaces": section.interface[there].tolist(),
    }


def _key(record: EntryRecord, section: RulesetSection, row: int) -> str:
    """A ligand's components; a polymer's entry and entity, and its sequence."""
    if section.chain_type[row] == LIGAND:
        first, stop = section.chain_residue[row], section.chain_residue[row + 1]
        return "_".join(section.residue_name[first:stop].tolist())
    entity = record.chain_entity[section.chain_asym[row]]
    about = record.entities[entity]
    sequence = about.sequence or " ".join(about.monomers)
    return f"{record.entry.upper()}_{about.name}:{sequence}"


def cluster_of(key: str, clusters: Mapping[str, str]) -> str:
    """The cluster of a chain, by what `describe_section` says of it.

    Polymers of fewer than 10 residues, and those in no cluster, are clusters of their own sequence.
    """
    name, colon, sequence = key.partition(":")
    if not colon:
        return key
    if len(sequence) >= 10:
        for known in (name, name.lower(), sequence):
            if known in clusters:
                return clusters[known]
    return hashlib.sha256(sequence.encode()).hexdigest()[:16]

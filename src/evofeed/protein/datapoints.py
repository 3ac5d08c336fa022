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
    """Name of the alignment of a sequence: a digest of its letters and its polymer type."""
    return hashlib.sha256(f"{'rna' if is_rna else 'protein'}:{sequence}".encode()).hexdigest()


def alignment_names(record: EntryRecord, section: RulesetSection) -> dict[int, str]:
    """Name of the alignment of every entity with a sequence, by the section's entity number.

    A dataset need not have an alignment of that name.
    """
    names = {}
    for chain, kind in enumerate(section.chain_type.tolist()):
        entity = record.chain_entity[section.chain_asym[chain]]
        if kind in (PROTEIN, RNA) and entity >= 0 and record.entities[entity].sequence:
            sequence = record.entities[entity].sequence
            name = alignment_name(sequence, is_rna=kind == RNA)
            names[int(section.chain_entity[chain])] = name
    return names


def atomized_residues(section: RulesetSection) -> Bool[np.ndarray, " R"]:
    """Mask of residues with one token for each atom: ligands and non-standard residues; for
    OpenFold3 also residues with a link other than a peptide's or a nucleic acid's."""
    residue, chain = section.atom_residue(), section.atom_chain()
    first = section.residue_atom[:-1]
    ligand = section.chain_type[chain[first]] == LIGAND if len(first) else np.zeros(0, bool)
    atomized: np.ndarray = ligand | ~np.isin(section.residue_name, RESTYPES)
    if section.project != "openfold3":
        return atomized
    a, b = section.bond_atom.T
    index = section.residue_index[residue]
    special = (chain[a] != chain[b]) | (index[a] != index[b])
    for link in (_PEPTIDE, _PHOSPHODIESTER):
        in_link = np.isin(section.atom_name, link)
        special &= ~(in_link[a] & in_link[b])
    atomized[residue[a[special]]] = True
    atomized[residue[b[special]]] = True
    return atomized


def molecule_names(
    entry: str, section: RulesetSection
) -> tuple[Integer[np.ndarray, " R"], list[str]]:
    """Component of every residue, and the name of every component's reference molecule.

    Each residue of a polymer is a component; a ligand of several residues is one component.
    """
    counts = np.diff(section.chain_residue)
    chain = np.repeat(np.arange(len(counts)), counts)
    ligand = section.chain_type == LIGAND
    starts = np.ones(len(chain), bool)
    starts[1:] = ~(ligand[chain[1:]] & (chain[1:] == chain[:-1]))
    first = np.flatnonzero(starts)
    titles: list[str] = section.residue_name[first].tolist()
    for number in np.flatnonzero((ligand & (counts > 1))[chain[first]]).tolist():
        titles[number] = f"{entry}_{section.chain_entity[chain[first[number]]]}"
    return np.cumsum(starts) - 1, titles


def num_tokens(section: RulesetSection) -> int:
    """Tokens of the valid chains."""
    valid = np.repeat(section.chain_valid, np.diff(section.chain_residue))
    sizes = np.diff(section.residue_atom)
    return int(np.where(atomized_residues(section), sizes, 1)[valid].sum())


def describe_section(record: EntryRecord, section: RulesetSection) -> dict[str, Any]:
    """Chains and interfaces of an entry that a project may sample, as plain values.

    `chains`: row, type, key of its cluster (`cluster_of`) and entity of every valid chain;
    `interfaces`: valid chains in contact.
    """
    valid = np.flatnonzero(section.chain_valid)
    entities = section.chain_entity.tolist()
    sampled = np.isin(section.interface, valid).all(1)
    return {
        "num_tokens": num_tokens(section),
        "num_atoms": len(section.atom_name),
        "chains": [
            [row, int(section.chain_type[row]), _key(record, section, row), entities[row]]
            for row in valid.tolist()
        ],
        "interfaces": section.interface[sampled].tolist(),
    }


def _key(record: EntryRecord, section: RulesetSection, row: int) -> str:
    """Key of a chain's cluster: components of a ligand; entry, entity and sequence of a polymer."""
    if section.chain_type[row] == LIGAND:
        first, stop = section.chain_residue[row], section.chain_residue[row + 1]
        return "_".join(section.residue_name[first:stop].tolist())
    entity = record.chain_entity[section.chain_asym[row]]
    described = record.entities[entity]
    sequence = described.sequence or " ".join(described.monomers)
    return f"{record.entry.upper()}_{described.name}:{sequence}"


def cluster_of(key: str, clusters: Mapping[str, str]) -> str:
    """The cluster of a chain, by its key of `describe_section`.

    The cluster of a polymer of fewer than 10 residues, or in no cluster, is its own sequence.
    """
    name, colon, sequence = key.partition(":")
    if not colon:
        return key
    if len(sequence) >= 10:
        for candidate in (name, name.lower(), sequence):
            if candidate in clusters:
                return clusters[candidate]
    return hashlib.sha256(sequence.encode()).hexdigest()[:16]

"""A record and Protenix's section of it -> `ProtenixView` (its tokenizer and annotations)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.columns import (
    RESTYPES,
    UNKNOWN,
    reference_columns,
    representative_atoms,
    residue_codes,
    split_tokens,
    structure_columns,
    token_columns,
)
from evofeed.loader.views.entry_view import OTHER_POLYMER, ChainType, ProtenixView
from evofeed.protein.alignment import Alignment, letter_codes
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import LIGAND, POLYMERS, EntryRecord
from evofeed.protein.molecules import Molecule, element_numbers
from evofeed.protein.ruleset_section import RulesetSection

_AMINO_ACIDS: Final = dict(zip("ARNDCQEGHILKMFPSTWYV", RESTYPES, strict=False))


def protenix_view(
    record: EntryRecord,
    section: RulesetSection,
    molecules: Mapping[str, Molecule],
    alignments: Mapping[int, str],
    components: ComponentTable,
) -> ProtenixView:
    """The whole entry as Protenix reads it.

    The type and letter of its component determine the type of a residue.

    Raises:
        MoleculeMissing: a reference molecule is absent, or an atom of it.
    """
    present = section.atom_row >= 0
    titles = section.residue_name.tolist()
    columns = reference_columns(section, np.arange(len(titles)), titles, molecules)
    columns["atom_element"] = element_numbers(section.atom_element)
    chain = np.repeat(np.arange(len(section.chain_name)), np.diff(section.chain_residue))
    polymer = _polymers(record, section)
    kinds = {name: components[name].kind for name in set(titles) & components.keys()}
    kind = np.array([kinds.get(name, ChainType.LIGAND) for name in titles], np.uint8)
    kind[polymer[chain] == ChainType.LIGAND] = ChainType.LIGAND
    pairs = list(zip(titles, kind.tolist(), strict=True))
    canonical = {pair: _canonical(components.get(pair[0]), pair[1]) for pair in set(pairs)}
    types = np.array([canonical[pair] for pair in pairs], np.uint8)
    # A token for every standard residue, and for every atom of others.
    standard = (residue_codes(section.residue_name) >= 0) & (kind != ChainType.LIGAND)
    tokens = split_tokens(section, standard)
    centre, distogram = representative_atoms(section, standard, tokens)
    atomized = (tokens.atoms == 1) & (np.diff(section.residue_atom)[tokens.residue] > 1)
    return ProtenixView(
        **structure_columns(record, section, present, alignments, single=True),
        **columns,
        **token_columns(tokens, types, centre, distogram, atomized, present[centre]),
        chain_sym=section.chain_copy.astype(np.int32),
        chain_asym=section.chain_number.astype(np.int32),
        chain_polymer=polymer,
        residue_kind=kind,
        residue_type=types,
    )


def canonical_sequences(
    record: EntryRecord, section: RulesetSection, components: ComponentTable
) -> dict[int, str]:
    """One-letter sequence of every polymer, X for residues without a letter, by entity.

    A residue that no chain has any more, such as an unresolved cap, keeps its monomer's letter.
    """
    codes: dict[int, list[str]] = {}
    polymer = _polymers(record, section)
    for chain, entity in enumerate(section.chain_entity.tolist()):
        if polymer[chain] == ChainType.LIGAND:
            continue
        monomers = record.entities[record.chain_entity[section.chain_asym[chain]]].monomers
        names = codes.setdefault(entity, list(monomers))
        residues = slice(*section.chain_residue[chain : chain + 2])
        numbers = section.residue_index[residues].tolist()
        names += ["UNK"] * (max(numbers) - len(names))
        for number, name in zip(numbers, section.residue_name[residues].tolist(), strict=True):
            if number > 0 and names[number - 1] not in ("ASX", "GLX"):
                names[number - 1] = name  # these two are renamed in the structure alone
    sequences = {}
    for entity, names in codes.items():
        letters = [components[name].one_letter if name in components else "" for name in names]
        sequences[entity] = "".join(letter if len(letter) == 1 else "X" for letter in letters)
    return sequences


def _polymers(record: EntryRecord, section: RulesetSection) -> Integer[np.ndarray, " C"]:
    kinds = [
        POLYMERS.get(entity.polymer, OTHER_POLYMER) if entity.polymer or entity.monomers else LIGAND
        for entity in record.entities
    ]
    polymers: np.ndarray = np.array(kinds, np.uint8)[record.chain_entity[section.chain_asym]]
    return polymers


def _canonical(component: Component | None, kind: int) -> int:
    """Index in `RESTYPES` of the letter of a component in sequences."""
    letter = component.one_letter if component else ""
    if kind == ChainType.PROTEIN:
        return RESTYPES.index(_AMINO_ACIDS.get(letter, "UNK"))
    if kind == ChainType.DNA:
        return RESTYPES.index(f"D{letter}" if f"D{letter}" in RESTYPES[26:] else "DN")
    if kind == ChainType.RNA:
        return RESTYPES.index(letter if letter in RESTYPES[21:26] else "N")
    return UNKNOWN


def query_alignments(
    record: EntryRecord,
    section: RulesetSection,
    components: ComponentTable,
    aligned: Collection[int],
) -> dict[int, Alignment]:
    """Alignments of only the sequence of every polymer that is not `aligned`, by entity.

    In Protenix a polymer without an alignment, DNA always, has its own sequence.
    """
    sequences = canonical_sequences(record, section, components)
    return {
        entity: _single_sequence(f"sequence of entity {entity}", sequence)
        for entity, sequence in sequences.items()
        if entity not in aligned
    }


def _single_sequence(name: str, sequence: str) -> Alignment:
    zero = np.zeros(1, np.int32)
    empty = np.zeros(0, np.int32)
    return Alignment(
        name=name,
        sources=("query",),
        letters=letter_codes(np.frombuffer(sequence.encode(), np.uint8))[None],
        row_letters=zero,
        row_source=zero,
        row_species=zero - 1,
        row_gapless=zero.astype(np.int64),
        species=(),
        deletion_start=np.zeros(2, np.int64),
        deletion_column=empty,
        deletion_count=empty,
    )

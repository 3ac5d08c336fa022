"""A record and Protenix's section of it -> `ProtenixView` (its tokenizer and annotations)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.columns import (
    RESTYPES,
    UNKNOWN,
    references,
    residue_codes,
    split_tokens,
    standing_atoms,
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
    """The whole entry as Protenix sees it.

    Types and letters of the components say what a residue is.

    Raises:
        MoleculeMissing: a reference molecule is absent, or an atom of it.
    """
    present = section.atom_row >= 0
    titles = section.residue_name.tolist()
    columns = references(section, np.arange(len(titles)), titles, molecules)
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
    centre, apart = standing_atoms(section, standard, tokens)
    split = (tokens.atoms == 1) & (np.diff(section.residue_atom)[tokens.residue] > 1)
    return ProtenixView(
        **structure_columns(record, section, present, alignments, single=True),
        **columns,
        **token_columns(tokens, types, centre, apart, split, present[centre]),
        chain_sym=section.chain_copy.astype(np.int32),
        chain_asym=section.chain_number.astype(np.int32),
        chain_polymer=polymer,
        residue_kind=kind,
        residue_type=types,
    )


def canonical_sequences(
    record: EntryRecord, section: RulesetSection, components: ComponentTable
) -> dict[int, str]:
    """Letters of every polymer's residues, X for those without one, by the section's entity."""
    found: dict[int, str] = {}
    polymer = _polymers(record, section)
    for chain, entity in enumerate(section.chain_entity.tolist()):
        if polymer[chain] != ChainType.LIGAND:
            low, high = section.chain_residue[chain : chain + 2]
            names = section.residue_name[low:high].tolist()
            monomers = record.entities[record.chain_entity[section.chain_asym[chain]]].monomers
            for place, number in enumerate(section.residue_index[low:high].tolist()):
                if 0 < number <= len(monomers) and monomers[number - 1] in ("ASX", "GLX"):
                    names[place] = monomers[number - 1]  # renamed in the structure alone
            letters = [one.one_letter if (one := components.get(name)) else "" for name in names]
            found[entity] = "".join(one if len(one) == 1 else "X" for one in letters)
    return found


def _polymers(record: EntryRecord, section: RulesetSection) -> Integer[np.ndarray, " C"]:
    kinds = [
        POLYMERS.get(one.polymer, OTHER_POLYMER) if one.polymer or one.monomers else LIGAND
        for one in record.entities
    ]
    found: np.ndarray = np.array(kinds, np.uint8)[record.chain_entity[section.chain_asym]]
    return found


def _canonical(component: Component | None, kind: int) -> int:
    """Row of `RESTYPES` of the letter that a component has in sequences."""
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
    """The sequence alone of every polymer that is not among the aligned ones, by entity.

    Protenix shows a polymer without an alignment its own sequence, DNA always.
    """
    sequences = canonical_sequences(record, section, components)
    return {
        entity: _alone(f"sequence of entity {entity}", sequence)
        for entity, sequence in sequences.items()
        if entity not in aligned
    }


def _alone(name: str, sequence: str) -> Alignment:
    one = np.zeros(1, np.int32)
    none = np.zeros(0, np.int32)
    return Alignment(
        name=name,
        sources=("query",),
        letters=letter_codes(np.frombuffer(sequence.encode(), np.uint8))[None],
        row_letters=one,
        row_source=one,
        row_species=one - 1,
        row_gapless=one.astype(np.int64),
        species=(),
        deletion_start=np.zeros(2, np.int64),
        deletion_column=none,
        deletion_count=none,
    )

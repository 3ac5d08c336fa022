"""A record and Boltz's section of it -> `EntryView` (its `data/tokenize/boltz.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evofeed.loader.views.columns import (
    RESTYPES,
    UNKNOWN,
    Tokens,
    present_residues,
    reference_columns,
    representative_atoms,
    residue_codes,
    split_tokens,
    structure_columns,
    token_columns,
)
from evofeed.loader.views.entry_view import ChainType, EntryView
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection, copies_of

FIRST_CODE: Final = 2
"""Boltz's code of the first residue of `RESTYPES`; padding and the gap come before it."""


def boltz_view(
    record: EntryRecord,
    section: RulesetSection,
    molecules: Mapping[str, Molecule],
    alignments: Mapping[int, str],
) -> EntryView:
    """The whole entry as Boltz reads it.

    Raises:
        MoleculeMissing: a reference molecule is absent, or an atom of it.
    """
    present = section.atom_row >= 0
    rows = np.arange(len(section.residue_name))
    titles = section.residue_name.tolist()
    columns = reference_columns(section, rows, titles, molecules)
    types = FIRST_CODE + residue_codes(section.residue_name, UNKNOWN)
    chain = np.repeat(np.arange(len(section.chain_name)), np.diff(section.chain_residue))
    ligand = section.chain_type[chain] == ChainType.LIGAND
    types[ligand] = FIRST_CODE + UNKNOWN
    standard = ~ligand & np.isin(section.residue_name, RESTYPES)
    sizes = np.diff(columns["molecule_atom"])
    columns["molecule_position"][:, columns["molecule_atom"][:-1][sizes == 1]] = 0
    tokens = split_tokens(section, standard)
    valid = section.chain_valid[chain][tokens.residue]
    tokens = Tokens(*(column[valid] for column in tokens))
    centre, distogram = representative_atoms(section, standard, tokens)
    residue_present = present_residues(present, section.residue_atom)
    resolved = residue_present[tokens.residue] & present[centre]
    atomized = ~standard[tokens.residue]
    return EntryView(
        **structure_columns(record, section, present, alignments, single=False),
        **columns,
        **token_columns(tokens, types, centre, distogram, atomized, resolved),
        chain_sym=copies_of(section.chain_entity),
        residue_type=types.astype(np.uint8),
    )

"""A record and OpenFold3's section of it -> `EntryView` (its `structure/tokenization.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from evofeed.loader.views.columns import (
    UNKNOWN,
    reference_columns,
    residue_codes,
    split_tokens,
    structure_columns,
    token_columns,
)
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.datapoints import atomized_residues, molecule_names
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.molecules import Molecule
from evofeed.protein.ruleset_section import RulesetSection, copies_of

_CENTRES: Final = ("CA", "C1'")


def openfold3_view(
    record: EntryRecord,
    section: RulesetSection,
    molecules: Mapping[str, Molecule],
    alignments: Mapping[int, str],
) -> EntryView:
    """The whole entry as OpenFold3 reads it.

    Molecules are named by component code, ligands of several components `<entry>_<entity>`.

    Raises:
        MoleculeMissing: a reference molecule is absent, or an atom of it.
    """
    occupied = record.atom_occupancy[section.atom_row] > 0
    present = (section.atom_row >= 0) & occupied
    component, titles = molecule_names(record.entry, section)
    types = residue_codes(section.residue_name, UNKNOWN).astype(np.uint8)
    atomized = atomized_residues(section)
    tokens = split_tokens(section, ~atomized)
    is_centre = np.isin(section.atom_name, _CENTRES)
    centres = np.flatnonzero(atomized[section.atom_residue()] | is_centre)
    atomized_token = atomized[tokens.residue]
    return EntryView(
        **structure_columns(record, section, present, alignments, single=True),
        **reference_columns(section, component, titles, molecules),
        **token_columns(tokens, types, centres, None, atomized_token, present[centres]),
        chain_sym=copies_of(section.chain_entity),
        residue_type=types,
    )

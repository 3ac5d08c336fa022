"""Columns of an `EntryView` that do not depend on the project, from a ruleset's section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Integer, Shaped, UInt8
from evofeed.loader.views.entry_view import NAME_CHARS
from evofeed.protein.datapoints import RESTYPES as RESTYPES
from evofeed.protein.entry_record import EntryRecord
from evofeed.protein.molecules import Molecule, molecule
from evofeed.protein.ruleset_section import RulesetSection, placed

UNKNOWN: Final = RESTYPES.index("UNK")
GAP_TYPE: Final = len(RESTYPES)
"""Residue type of a gap in OpenFold3 and Protenix."""
NUM_RESTYPES: Final = len(RESTYPES) + 1
"""Residue types of OpenFold3 and Protenix, with the gap."""

_DISTOGRAM: Final = {
    **dict.fromkeys(("A", "G", "DA", "DG"), "C4"),
    **dict.fromkeys(("C", "U", "DC", "DT"), "C2"),
    **dict.fromkeys(("N", "DN"), "C1'"),
    "GLY": "CA",
}


def structure_columns(
    record: EntryRecord,
    section: RulesetSection,
    present: Bool[np.ndarray, " A"],
    alignments: Mapping[int, str],
    *,
    single: bool,
) -> dict[str, Any]:
    """Columns of chains, residues and atoms.

    `present` are the atoms that the project counts as resolved; coordinates of copies are of
    `single` precision where biotite computes them.
    """
    operator = section.chain_operator[section.atom_chain()]
    position = placed(
        record.atom_position[section.atom_row], operator, record.operators, single=single
    )
    by_chain = [alignments.get(entity, "") for entity in section.chain_entity.tolist()]
    names = tuple(sorted({name for name in by_chain if name}))
    return {
        "entry": record.entry,
        "resolution": record.resolution(),
        "alignments": names,
        "chain_alignment": np.array([names.index(n) if n else -1 for n in by_chain], np.int32),
        "chain_name": section.chain_name,
        "chain_type": section.chain_type.astype(np.uint8),
        "chain_entity": section.chain_entity.astype(np.int32),
        "chain_valid": section.chain_valid,
        "chain_residue": section.chain_residue.astype(np.int32),
        "residue_name": section.residue_name,
        "residue_index": section.residue_index.astype(np.int32),
        "residue_atom": section.residue_atom.astype(np.int32),
        "residue_present": present_residues(present, section.residue_atom),
        "atom_name": name_codes(section.atom_name),
        "atom_position": np.where(section.atom_row[:, None] >= 0, position, np.float32(0)),
        "atom_present": present,
        "bond_atom": section.bond_atom.astype(np.int32),
        "bond_type": section.bond_type.astype(np.uint8),
        "interface_chain": section.interface.astype(np.int32),
    }


class Tokens(NamedTuple):
    """Tokens of a section: first atom, number of atoms, and residue of each."""

    first: Integer[np.ndarray, " N"]
    atoms: Integer[np.ndarray, " N"]
    residue: Integer[np.ndarray, " N"]


def split_tokens(section: RulesetSection, unsplit: Bool[np.ndarray, " R"]) -> Tokens:
    """One token for every `unsplit` residue, and one for every atom of the others."""
    residue = section.atom_residue()
    starts_token = ~unsplit[residue]
    starts_token[section.residue_atom[:-1]] = True
    first = np.flatnonzero(starts_token)
    return Tokens(first, np.diff(np.append(first, len(residue))), residue[first])


def token_columns(
    tokens: Tokens,
    types: Integer[np.ndarray, " R"],
    centre: Integer[np.ndarray, " N"],
    distogram: Integer[np.ndarray, " N"] | None,
    atomized: Bool[np.ndarray, " N"],
    resolved: Bool[np.ndarray, " N"],
) -> dict[str, Any]:
    """Columns of tokens; `types` are of residues, `distogram` is None where the model finds it."""
    distogram_atom = np.full(len(tokens.first), -1) if distogram is None else distogram
    return {
        "token_atom": tokens.first.astype(np.int32),
        "token_atoms": tokens.atoms.astype(np.int32),
        "token_residue": tokens.residue.astype(np.int32),
        "token_type": types[tokens.residue].astype(np.uint8),
        "token_centre": centre.astype(np.int32),
        "token_distogram": distogram_atom.astype(np.int32),
        "token_atomized": atomized,
        "token_resolved": resolved,
    }


def residue_codes(names: Shaped[np.ndarray, " n"], unknown: int = -1) -> Integer[np.ndarray, " n"]:
    """Index in `RESTYPES` of component codes, `unknown` for those that are not in it."""
    codes = {name: code for code, name in enumerate(RESTYPES)}
    return np.array([codes.get(name, unknown) for name in names.tolist()], np.int64)


def representative_atoms(
    section: RulesetSection, standard: Bool[np.ndarray, " R"], tokens: Tokens
) -> tuple[Integer[np.ndarray, " N"], Integer[np.ndarray, " N"]]:
    """Atoms that represent the tokens: centres in crops, and those of the distogram.

    In a standard residue the atom of the right name, otherwise the token's first atom.
    """
    names, residue = section.residue_name.tolist(), section.atom_residue()
    representatives = []
    for atom_names in (
        ["CA" if len(name) == 3 else "C1'" for name in names],
        [_DISTOGRAM.get(name, "CB") for name in names],
    ):
        matches = section.atom_name == np.array(atom_names)[residue]
        atoms = np.flatnonzero(standard[residue] & matches)
        by_residue = np.full(len(names), -1, np.int64)
        by_residue[residue[atoms]] = atoms
        atom = by_residue[tokens.residue]
        representatives.append(np.where(atom >= 0, atom, tokens.first))
    return representatives[0], representatives[1]


def reference_columns(
    section: RulesetSection,
    component: Integer[np.ndarray, " R"],
    titles: Sequence[str],
    molecules: Mapping[str, Molecule],
) -> dict[str, Any]:
    """Columns of the distinct reference molecules, sorted by name, and of each atom's reference.

    `component` numbers the residues' components from 0, ascending; `titles` name their molecules.

    Raises:
        MoleculeMissing: a molecule is absent, or an atom of it.
    """
    names = tuple(sorted(set(titles)))
    used = [molecule(molecules, name) for name in names]
    starts = np.append(0, np.cumsum([len(m.name) for m in used])).astype(np.int32)
    rank = {name: row for row, name in enumerate(names)}
    first = np.flatnonzero(np.diff(component, prepend=-1))
    bounds = np.append(section.residue_atom[first], len(section.atom_name)).tolist()
    names_of_atoms = np.ascontiguousarray(section.atom_name)
    text, width = names_of_atoms.tobytes(), names_of_atoms.itemsize
    cache: dict[tuple[str, bytes], np.ndarray] = {}  # copies and equal residues are looked up once
    parts = [np.zeros(0, np.int32)]
    for title, low, high in zip(titles, bounds[:-1], bounds[1:], strict=True):
        key = title, text[low * width : high * width]
        if (rows := cache.get(key)) is None:
            row = rank[title]
            rows = cache[key] = starts[row] + used[row].rows_of(title, names_of_atoms[low:high])
        parts.append(rows)
    reference = np.concatenate(parts)
    num_conformers = min(len(m.position) for m in used)
    position = np.concatenate([m.position[:num_conformers] for m in used], axis=1)
    bond = np.concatenate([m.bond + start for m, start in zip(used, starts, strict=False)])
    element = np.concatenate([m.element for m in used])
    charge = np.concatenate([m.charge for m in used])
    return {
        "residue_component": component.astype(np.int32),
        "atom_reference": reference,
        "component_molecule": np.array([rank[title] for title in titles], np.int32),
        "molecule_name": names,
        "molecule_atom": starts,
        "molecule_position": position.astype(np.float32),
        "molecule_mask": np.concatenate([m.mask for m in used]),
        "molecule_bond": bond.astype(np.int32),
        "molecule_orders": tuple(m.orders for m in used),
        "atom_element": element[reference].astype(np.uint8),
        "atom_charge": charge[reference].astype(np.int8),
    }


def name_codes(names: Shaped[np.ndarray, " A"]) -> UInt8[np.ndarray, "A 4"]:
    """The first four characters of atom names, minus 32, padded with blanks."""
    codes = names.astype(f"<U{NAME_CHARS}").view(np.uint32).reshape(-1, NAME_CHARS)
    return (np.maximum(codes, 32) - 32).astype(np.uint8)


def present_residues(
    present: Bool[np.ndarray, " A"], offsets: Integer[np.ndarray, " bounds"]
) -> Bool[np.ndarray, " R"]:
    """True for residues with any atom present; every residue has atoms."""
    return np.add.reduceat(present, offsets[:-1]) > 0

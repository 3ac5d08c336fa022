"""Protenix's codes: residues, letters of alignments, atom order of standard residues."""

from __future__ import annotations

from typing import Final

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.cells import letter_table
from evofeed.loader.views.columns import GAP_TYPE, RESTYPES, UNKNOWN, name_codes
from evofeed.loader.views.entry_view import OTHER_POLYMER, ChainType
from evofeed.protein.residue_geometry import RESIDUE_ATOMS

_AMINO_ACIDS: Final = letter_table(0, "ARNDCQEGHILKMFPSTWYV", UNKNOWN, GAP_TYPE, "BDUCZE")
LETTERS: Final[dict[int, np.ndarray]] = {
    ChainType.PROTEIN: _AMINO_ACIDS,
    OTHER_POLYMER: _AMINO_ACIDS,
    ChainType.DNA: letter_table(26, "AGCT", RESTYPES.index("DN"), GAP_TYPE),
    ChainType.RNA: letter_table(21, "AGCU", RESTYPES.index("N"), GAP_TYPE),
}
"""Codes of letters in the rows of a polymer; in proteins B is D, U is C, Z is E."""

_BACKBONE: Final = "OP3 P OP1 OP2 O5' C5' C4' O4' C3' O3' C2'"
_BASES: Final = {
    "A": "C1' N9 C8 N7 C5 C6 N6 N1 C2 N3 C4",
    "G": "C1' N9 C8 N7 C5 C6 O6 N1 C2 N2 N3 C4",
    "C": "C1' N1 C2 O2 N3 C4 N4 C5 C6",
    "U": "C1' N1 C2 O2 N3 C4 O4 C5 C6",
    "T": "C1' N1 C2 O2 N3 C4 O4 C5 C7 C6",
    "N": "C1'",
}
_ATOMS: Final = {
    **{name: [*atoms, "OXT"] for name, atoms in RESIDUE_ATOMS.items()},
    "UNK": "N CA C O CB CG OXT".split(),
    **{name: f"{_BACKBONE} O2' {_BASES[name]}".split() for name in "AGCUN"},
    **{f"D{name}": f"{_BACKBONE} {_BASES[name]}".split() for name in "AGCTN"},
}


def atoms_of(residue: str) -> list[str]:
    """Atoms of a standard residue in order, without the terminal OXT."""
    return [atom for atom in _ATOMS[residue] if atom != "OXT"]


def _pack(names: Integer[np.ndarray, "A 4"]) -> Integer[np.ndarray, " A"]:
    packed: np.ndarray = np.ascontiguousarray(names.astype(np.uint8)).view(np.uint32)[:, 0]
    return packed.astype(np.int64)


def _atom_table() -> tuple[np.ndarray, np.ndarray]:
    keys, indices = [], []
    for code, name in enumerate(RESTYPES):
        atoms = np.array(_ATOMS[name])
        keys.append((code << 32) + _pack(name_codes(atoms)))
        indices.append(np.arange(len(atoms)))
    order = np.argsort(np.concatenate(keys))
    return np.concatenate(keys)[order], np.concatenate(indices)[order]


_KEYS, _INDICES = _atom_table()


def standard_atom_index(
    residue: Integer[np.ndarray, " A"], names: Integer[np.ndarray, "A 4"]
) -> Integer[np.ndarray, " A"]:
    """Index of atoms in their standard residue; 0 for atoms that are not in one."""
    keys = (residue << 32) + _pack(names)
    row = np.minimum(np.searchsorted(_KEYS, keys), len(_KEYS) - 1)
    return np.where(_KEYS[row] == keys, _INDICES[row], 0)


def is_named(names: Integer[np.ndarray, "A 4"], *atom_names: str) -> np.ndarray:
    """True for atoms with one of these names, `bool[A]`."""
    return np.isin(_pack(names), _pack(name_codes(np.array(atom_names))))

"""Three-letter residue names: their letters, modified ones as their parents, and their kinds."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from evofeed.protein.residues import RESTYPE_3, RESTYPES

_FORCE_FIELD: Final = {
    **dict.fromkeys(("HSD", "HSP", "HID", "HIE"), "H"),
    **{"CYX": "C", "ASH": "D"},
}
"""Protonation states under names of CHARMM and Amber that are not PDB components."""
_WATERS: Final = frozenset(("TIP", "TP3", "SOL", "SPC", "T3P", "T4P"))
"""Names of water in simulations."""
_STANDARD: Final = dict(zip(RESTYPE_3, RESTYPES, strict=True))


@cache
def _extended() -> dict[str, str]:
    from Bio.Data.PDBData import protein_letters_3to1_extended

    return dict(protein_letters_3to1_extended)


def one_letter(name: str) -> str:
    """Letter of a chemical component by Biopython's table, as in OpenFold: MSE is M, SEC X."""
    letter = _extended().get(name, "X")
    return letter if len(letter) == 1 else "X"


def model_letter(name: str) -> str:
    """Letter as `one_letter`, also for names of CHARMM and Amber."""
    return _FORCE_FIELD.get(name) or one_letter(name)


def standard_letter(name: str) -> str:
    """Letter of one of the twenty amino acids, X for all others."""
    return _STANDARD.get(name, "X")


@cache
def tabulated(name: str) -> Any:
    """gemmi's `ResidueInfo` of a residue name."""
    from gemmi import find_tabulated_residue

    return find_tabulated_residue(name)


def is_amino_acid(name: str) -> bool:
    """True if a residue of that name is an amino acid, modified ones included."""
    return model_letter(name) != "X" or bool(tabulated(name).is_amino_acid())


def is_water(name: str) -> bool:
    """True if a residue of that name is water."""
    return name in _WATERS or bool(tabulated(name).is_water())


def is_nucleotide(name: str) -> bool:
    """True if a residue of that name is one of DNA or RNA."""
    return bool(tabulated(name).is_nucleic_acid())

"""Three-letter residue names to one letter, modified residues to their parent."""

from __future__ import annotations

from functools import cache

from evofeed.residues import RESTYPE_3, RESTYPES


@cache
def _extended() -> dict[str, str]:
    from Bio.Data.PDBData import protein_letters_3to1_extended

    return dict(protein_letters_3to1_extended)


def one_letter(name: str) -> str:
    """Letter of a chemical component by Biopython's table, as in OpenFold: MSE is M, SEC X."""
    letter = _extended().get(name, "X")
    return letter if len(letter) == 1 else "X"


def standard_letter(name: str) -> str:
    """Letter of one of the twenty amino acids, X for all others."""
    return _STANDARD.get(name, "X")


_STANDARD = dict(zip(RESTYPE_3, RESTYPES, strict=True))

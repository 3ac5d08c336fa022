"""Molecules as Boltz, Chai and AlphaFold 3 name them; only the proteins are featurized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

LEFT_OUT: Final = "no protein, left out"
"""How the note on what is beside the proteins begins."""
_BOLTZ: Final = ("protein", "rna", "dna", "ccd", "smiles")
_CHAI: Final = ("protein", "rna", "dna", "ligand", "glycan")


class Molecule(NamedTuple):
    """What a header or a job file says: a name, a kind of molecule, and the file of its alignment.

    `chain` marks a name that is only a chain's, as in Boltz: its file is the entry.
    """

    name: str
    kind: str
    msa: str = ""
    chain: bool = False


def molecule_of(header: str) -> Molecule | None:
    """A molecule as Boltz (`A|protein|x.a3m`) or Chai (`protein|name=x`) write it; else None."""
    first, *rest = (part.strip() for part in header.split("|"))
    if rest and rest[0].lower() in _BOLTZ:
        msa = rest[1] if len(rest) > 1 else ""
        return Molecule(first, rest[0].lower(), "" if msa == "empty" else msa, chain=True)
    if rest and first.lower() in _CHAI:
        name, _, _ = rest[0].removeprefix("name=").strip().partition(" ")
        return Molecule(name, first.lower())
    return None


def is_other(molecule: Molecule | None) -> bool:
    """Whether it says that it is no protein."""
    return molecule is not None and molecule.kind != "protein"


def no_protein(others: Iterable[Molecule]) -> str:
    """A note on what is beside the proteins of an entry."""
    listed = ", ".join(f"{molecule.name} ({molecule.kind})" for molecule in others)
    return f"{LEFT_OUT}: {listed}"

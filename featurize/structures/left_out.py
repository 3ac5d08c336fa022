"""Molecules of a structure file that are no protein: ligands, glycans, nucleic acids, by chain."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

import numpy as np

from evofeed.featurize.structures.atom_sites import PlacedRows
from evofeed.featurize.structures.atom_table import AtomTable
from evofeed.featurize.structures.author_chains import residue_counts, residues_of
from evofeed.featurize.structures.residue_names import is_water
from evofeed.featurize.structures.structure import OtherMolecule

_SHOWN: Final = 12
_KINDS: Final = {
    **{"DNA": "DNA", "RNA": "RNA", "PYR": "glycan", "KET": "glycan"},
    **dict.fromkeys(("AA", "AAD", "PAA", "MAA"), "amino acid"),
}
"""gemmi's kinds of residues, all others are ligands."""


def other_molecules(table: AtomTable, placed: Iterable[PlacedRows]) -> tuple[OtherMolecule, ...]:
    """What a file holds beside the residues of its protein chains, in its order, waters last."""
    taken = np.zeros(len(table.number), bool)
    for chain in placed:
        taken[chain.rows] = True
    every = np.arange(len(table.number))
    residues = residues_of(every, table, table.chain.codes, table.component.codes)
    rest = np.flatnonzero(~residues.having(taken)[residues.number] & ~table.absent)
    found = [
        OtherMolecule(_kind(component), component, chain, count)
        for code, chain in enumerate(table.chain.names)
        for component, count in residue_counts(
            rest[table.chain.codes[rest] == code], table
        ).most_common()
    ]
    return tuple(sorted(found, key=lambda molecule: molecule.kind == "water"))


def in_words(molecules: Iterable[OtherMolecule]) -> str:
    """The molecules in one line: `ligand 0G6 (H), glycan 2 NAG (A), DNA (C, D)`."""
    lines: dict[tuple[str, str], list[str]] = {}
    waters = 0
    for one in molecules:
        if one.kind == "water":
            waters += one.count
        elif one.kind in ("DNA", "RNA"):
            lines.setdefault((one.kind, ""), []).append(one.chain)
        else:
            times = f"{one.count} " if one.count > 1 else ""
            lines.setdefault((one.kind, f" {times}{one.component}"), []).append(one.chain)
    texts = [f"{kind}{what} ({', '.join(dict.fromkeys(c))})" for (kind, what), c in lines.items()]
    texts, more = texts[:_SHOWN], len(texts) - _SHOWN
    texts += [f"{more} more kinds"] if more > 0 else []
    return ", ".join([*texts, f"{waters} waters"] if waters else texts)


@cache
def _kind(component: str) -> str:
    import gemmi

    if is_water(component):
        return "water"
    return _KINDS.get(gemmi.find_tabulated_residue(component).kind.name, "ligand")

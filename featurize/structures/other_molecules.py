"""Non-protein molecules of a structure file: ligands, glycans, nucleic acids, waters, by chain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from evofeed.featurize.structures.atom_sites import PlacedRows
from evofeed.featurize.structures.atom_table import AtomTable
from evofeed.featurize.structures.author_chains import residue_counts, residues_of
from evofeed.featurize.structures.residue_names import is_water, tabulated
from evofeed.featurize.structures.structure import OtherMolecule

_MAX_LISTED: Final = 12
_KINDS: Final = {
    **{"DNA": "DNA", "RNA": "RNA", "PYR": "glycan", "KET": "glycan"},
    **dict.fromkeys(("AA", "AAD", "PAA", "MAA"), "amino acid"),
}
"""Kind of molecule by gemmi's kind of residue; all others are ligands."""


def other_molecules(table: AtomTable, placed: Iterable[PlacedRows]) -> tuple[OtherMolecule, ...]:
    """Molecules of the residues outside protein chains, in the order of the file, waters last."""
    in_protein = np.zeros(len(table.number), bool)
    for chain in placed:
        in_protein[chain.rows] = True
    rows = np.arange(len(table.number))
    residues = residues_of(rows, table, table.chain.codes, table.component.codes)
    others = np.flatnonzero(~residues.having(in_protein)[residues.ordinal] & ~table.absent)
    chains = table.chain.codes[others]
    molecules = [
        OtherMolecule(_kind(component), component, chain, count)
        for code, chain in enumerate(table.chain.names)
        for component, count in residue_counts(others[chains == code], table).most_common()
    ]
    return tuple(sorted(molecules, key=lambda molecule: molecule.kind == "water"))


def describe_molecules(molecules: Iterable[OtherMolecule]) -> str:
    """The molecules in one line: `ligand 0G6 (H), glycan 2 NAG (A), DNA (C, D)`."""
    chains: dict[str, list[str]] = {}
    waters = 0
    for molecule in molecules:
        kind, count = molecule.kind, molecule.count
        if kind == "water":
            waters += count
            continue
        if kind not in ("DNA", "RNA"):
            kind += f" {count} {molecule.component}" if count > 1 else f" {molecule.component}"
        chains.setdefault(kind, []).append(molecule.chain)
    texts = [f"{kind} ({', '.join(dict.fromkeys(ids))})" for kind, ids in chains.items()]
    texts, omitted = texts[:_MAX_LISTED], len(texts) - _MAX_LISTED
    texts += [f"{omitted} more kinds"] if omitted > 0 else []
    return ", ".join([*texts, f"{waters} waters"] if waters else texts)


def _kind(component: str) -> str:
    if is_water(component):
        return "water"
    return _KINDS.get(tabulated(component).kind.name, "ligand")

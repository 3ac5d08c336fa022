"""Atoms and residues that nobody saw, as OpenFold3 adds them (`structure/unresolved.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    Part,
    laid_out,
    residues_and_gaps,
)
from evofeed.featurize.records.rulesets.bonds import (
    BIOTITE_LINKS,
    COORDINATION,
    chain_bonds,
    merged_bonds,
    residue_bonds,
)
from evofeed.featurize.records.rulesets.standard import STANDARD_NUCLEIC, STANDARD_PROTEIN
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import LIGAND, PROTEIN, EntryRecord


def with_unresolved_atoms(
    atoms: AtomRows, record: EntryRecord, components: ComponentTable
) -> AtomRows:
    """The atoms with those that nobody saw, and bonds to them. They stand in the components' order.

    Ligands get none that have several residues or a bond to another chain; residues of a sequence
    are added to polymers.
    """
    sparse = covalent_ligands(atoms)
    entities = dict(zip(entity_numbers(record), record.entities, strict=True))

    def monomers(row: int) -> Sequence[str]:
        return () if atoms.kind[row] == LIGAND else entities[int(atoms.entity[row])].monomers

    @functools.cache
    def completed(code: str, kind: int, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        return _completed(components[code], kind, names)

    parts = []
    for low, high, number in residues_and_gaps(atoms, lambda row: len(monomers(row))):
        kind = int(atoms.kind[low])
        if low == high:
            codes = monomers(low)
            parts.append(_absent(components[codes[number - 1]], kind, low, number, len(codes)))
        elif int(atoms.chain[low]) in sparse:
            seen = np.arange(low, high)
            parts.append(Part(low, None, seen, seen))
        else:
            code, names = str(atoms.res_name[low]), tuple(atoms.name[low:high].tolist())
            rows, places = completed(code, kind, names)
            seen = np.where(places >= 0, low + places, -1)
            parts.append(Part(low, components[code], rows, seen))
    made = laid_out(atoms, parts, as_seen=True)
    starts = made.residue_starts()
    made.bonds = merged_bonds(
        made.bonds,
        residue_bonds(made, components, starts),
        chain_bonds(made, components, starts, lambda one: BIOTITE_LINKS.get(one.type.upper(), 0)),
    )
    return made


def _completed(
    component: Component, kind: int, seen: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Atoms of the component that a residue has, and which of those seen each is; -1 for none."""
    names = component.name[component.element != "H"].tolist()
    leaving = None
    if kind != LIGAND:
        leaving = "OXT" if kind == PROTEIN else _leaving_oxygen(component, seen, names)
    names = [name for name in names if name != leaving]
    there = [step for step, name in enumerate(names) if name in seen]
    absent = [step for step, name in enumerate(names) if name not in seen]
    # Each next atom of the residue, whatever its name: OpenFold3 counts it so.
    steps = [*there, *range(len(there), len(seen)), *absent]
    order = np.argsort(np.array(steps, np.int64), kind="stable")
    rows = [component.rows.get(name, -1) for name in (*seen, *(names[step] for step in absent))]
    places = np.append(np.arange(len(seen)), np.full(len(absent), -1))
    return np.array(rows, np.int64)[order], places[order]


def _absent(component: Component, kind: int, like: int, number: int, length: int) -> Part:
    """A residue of a sequence that nobody saw. The last has OXT, of nucleic acids the first OP3."""
    standard, leaving, end = STANDARD_NUCLEIC, ["OP3", "O3P"], 1
    if kind == PROTEIN:
        standard, leaving, end = STANDARD_PROTEIN, ["OXT"], length
    mask = component.element != "H"
    if number != end:
        mask &= ~np.isin(component.name, leaving)
    rows = np.flatnonzero(mask)
    hetero = component.code not in standard
    return Part(like, component, rows, np.full(len(rows), -1), number, hetero)


def _leaving_oxygen(
    component: Component, seen: Sequence[str], required: Sequence[str]
) -> str | None:
    """The oxygen that a bond to the residue before displaces."""
    for name in ("OP3", "O3P"):
        if name in required and name not in seen:
            return name
    phosphate, elsewhere = [], set()
    for pair in component.bond.tolist():
        for oxygen, other in (pair, pair[::-1]):
            name = str(component.name[oxygen])
            if component.element[oxygen] != "O" or name in seen:
                continue
            if component.name[other] == "P":
                phosphate.append((oxygen, name))
            elif component.element[other] not in ("H", "D"):
                elsewhere.add(name)
    free = sorted(row for row in phosphate if row[1] not in elsewhere)
    return free[0][1] if free else None


def covalent_ligands(atoms: AtomRows) -> set[int]:
    """Chains of ligands that have several residues or a bond to another chain, metals aside."""
    starts = atoms.residue_starts()
    names, counts = np.unique(atoms.chain[starts], return_counts=True)
    one, two, kind = atoms.bonds.T
    between = (atoms.chain[one] != atoms.chain[two]) & (kind != COORDINATION)
    several = np.concatenate(
        [names[counts > 1], atoms.chain[one[between]], atoms.chain[two[between]]]
    )
    return set(np.intersect1d(atoms.chain[atoms.kind == LIGAND], several).tolist())


def entity_numbers(record: EntryRecord) -> list[int]:
    """Number of every entity: its name, or its row from 1."""
    return [
        int(entity.name) if entity.name.isdecimal() else row
        for row, entity in enumerate(record.entities, 1)
    ]

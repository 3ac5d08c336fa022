"""Unresolved atoms and residues, as OpenFold3 adds them (`structure/unresolved.py`)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    ResiduePlan,
    build_residues,
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
    """The atoms with unresolved ones and their bonds, in the components' order.

    Polymers also get the unresolved residues of their sequence. Ligands with several residues or a
    bond to another chain get no atoms.
    """
    sparse = covalent_ligands(atoms)
    entities = dict(zip(entity_numbers(record), record.entities, strict=True))

    def monomers(row: int) -> Sequence[str]:
        return () if atoms.kind[row] == LIGAND else entities[int(atoms.entity[row])].monomers

    @functools.cache
    def ordered(code: str, kind: int, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
        return _component_order(components[code], kind, names)

    plans = []
    for low, high, number in residues_and_gaps(atoms, lambda row: len(monomers(row))):
        kind = int(atoms.kind[low])
        if low == high:
            codes = monomers(low)
            plans.append(_unresolved(components[codes[number - 1]], kind, low, number, len(codes)))
        elif int(atoms.chain[low]) in sparse:
            source = np.arange(low, high)
            plans.append(ResiduePlan(low, None, source, source))
        else:
            code, names = str(atoms.res_name[low]), tuple(atoms.name[low:high].tolist())
            rows, positions = ordered(code, kind, names)
            source = np.where(positions >= 0, low + positions, -1)
            plans.append(ResiduePlan(low, components[code], rows, source))
    built = build_residues(atoms, plans, keep_columns=True)
    starts = built.residue_starts()
    built.bonds = merged_bonds(
        built.bonds,
        residue_bonds(built, components, starts),
        chain_bonds(built, components, starts, lambda c: BIOTITE_LINKS.get(c.type.upper(), 0)),
    )
    return built


def _component_order(
    component: Component, kind: int, resolved: Sequence[str]
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Component rows of a residue's atoms, and their index in `resolved`; -1 if unresolved."""
    names = component.name[component.element != "H"].tolist()
    leaving = None
    if kind != LIGAND:
        leaving = "OXT" if kind == PROTEIN else _leaving_oxygen(component, resolved, names)
    names = [name for name in names if name != leaving]
    present = [step for step, name in enumerate(names) if name in resolved]
    absent = [step for step, name in enumerate(names) if name not in resolved]
    # The residue's atoms are counted in their order, whatever their names, as in OpenFold3.
    steps = [*present, *range(len(present), len(resolved)), *absent]
    order = np.argsort(np.array(steps, np.int64), kind="stable")
    rows = [component.rows.get(name, -1) for name in (*resolved, *(names[step] for step in absent))]
    positions = np.append(np.arange(len(resolved)), np.full(len(absent), -1))
    return np.array(rows, np.int64)[order], positions[order]


def _unresolved(component: Component, kind: int, row: int, number: int, length: int) -> ResiduePlan:
    """An unresolved residue. The last of a protein has OXT, the first of a nucleic acid OP3."""
    standard, leaving, end = STANDARD_NUCLEIC, ["OP3", "O3P"], 1
    if kind == PROTEIN:
        standard, leaving, end = STANDARD_PROTEIN, ["OXT"], length
    mask = component.element != "H"
    if number != end:
        mask &= ~np.isin(component.name, leaving)
    rows = np.flatnonzero(mask)
    hetero = component.code not in standard
    return ResiduePlan(row, component, rows, np.full(len(rows), -1), number, hetero)


def _leaving_oxygen(
    component: Component, resolved: Sequence[str], required: Sequence[str]
) -> str | None:
    """The oxygen displaced by the bond to the previous residue."""
    for name in ("OP3", "O3P"):
        if name in required and name not in resolved:
            return name
    phosphate, elsewhere = [], set()
    for pair in component.bond.tolist():
        for oxygen, other in (pair, pair[::-1]):
            name = str(component.name[oxygen])
            if component.element[oxygen] != "O" or name in resolved:
                continue
            if component.name[other] == "P":
                phosphate.append((oxygen, name))
            elif component.element[other] not in ("H", "D"):
                elsewhere.add(name)
    free = sorted(atom for atom in phosphate if atom[1] not in elsewhere)
    return free[0][1] if free else None


def covalent_ligands(atoms: AtomRows) -> set[int]:
    """Ligand chains with several residues or with a bond to another chain, except to metals."""
    starts = atoms.residue_starts()
    names, counts = np.unique(atoms.chain[starts], return_counts=True)
    first, second, kind = atoms.bonds.T
    between = (atoms.chain[first] != atoms.chain[second]) & (kind != COORDINATION)
    several = np.concatenate(
        [names[counts > 1], atoms.chain[first[between]], atoms.chain[second[between]]]
    )
    return set(np.intersect1d(atoms.chain[atoms.kind == LIGAND], several).tolist())


def entity_numbers(record: EntryRecord) -> list[int]:
    """Number of every entity: its name, or its row from 1."""
    return [
        int(entity.name) if entity.name.isdecimal() else row
        for row, entity in enumerate(record.entities, 1)
    ]

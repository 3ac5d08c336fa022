"""Atoms and residues that nobody saw, as OpenFold3 adds them (`structure/unresolved.py`)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    COORDINATION,
    AtomRows,
    chain_bonds,
    joined_rows,
    merged_bonds,
    residue_bonds,
    runs,
)
from evofeed.featurize.records.rulesets.standard import (
    LIGAND,
    PROTEIN,
    STANDARD_NUCLEIC,
    STANDARD_PROTEIN,
)
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import EntryRecord


def with_unresolved_atoms(
    atoms: AtomRows, record: EntryRecord, components: ComponentTable
) -> AtomRows:
    """Absent atoms of residues that were seen, then residues that were not, then their bonds.
    The atoms stand in the components' order.
    """
    atoms = _with_absent_atoms(atoms, components)
    atoms = _with_absent_residues(atoms, record, components)
    starts = atoms.residue_starts()
    atoms.bonds = merged_bonds(
        atoms.bonds,
        residue_bonds(atoms, components, starts),
        chain_bonds(atoms, components, starts),
    )
    return atoms


def _with_absent_atoms(atoms: AtomRows, components: ComponentTable) -> AtomRows:
    starts = atoms.residue_starts()
    sparse = covalent_ligands(atoms)
    order = np.arange(len(atoms), dtype=np.int64)
    shift = np.zeros(len(atoms) + 1, np.int64)
    added: list[tuple[int, int, Component, int]] = []
    required = {
        code: _required(components[code]) for code in np.unique(atoms.res_name[starts]).tolist()
    }
    leaves = np.isin(atoms.name, ("OXT", "OP3", "O3P"))
    for low, high in runs(starts, len(atoms)):
        if int(atoms.chain[low]) in sparse:
            continue
        component, wanted, sizes = required[str(atoms.res_name[low])]
        kind = int(atoms.kind[low])
        # As many atoms as a residue within a chain has: nothing is absent, if none leaves.
        size = len(wanted) if kind == LIGAND else sizes[int(kind != PROTEIN)]
        if high - low == size and not (kind != LIGAND and leaves[low:high].any()):
            continue
        seen = set(atoms.name[low:high].tolist())
        names = list(wanted)
        leaving = "OXT" if kind == PROTEIN else None
        if kind not in (PROTEIN, LIGAND):
            leaving = _leaving_oxygen(component, seen, names)
        if leaving in names:
            names.remove(leaving)
        missing = [name for name in names if name not in seen]
        if not missing:
            continue
        shift[high] += len(missing)
        begin, slot = low, 0
        for step, name in enumerate(names):
            if name in seen:
                # The next atom of the residue, whatever its name: OpenFold3 counts it so.
                order[begin + slot] = low + step
                slot += 1
            else:
                added.append((low, low + step, component, component.rows[name]))
    if not added:
        return atoms
    moved = np.cumsum(shift)
    lows = np.array([low for low, *_rest in added])
    columns = ("name", "element", "charge")
    values = ([getattr(part, one)[row] for _l, _o, part, row in added] for one in columns)
    new = atoms.unseen(lows, *map(np.array, values))
    places = np.array([place + moved[low] for low, place, _c, _r in added])
    joined = joined_rows([atoms, new])
    number = np.concatenate([order + moved[:-1][: len(atoms)], places])
    return joined.take(np.argsort(number, kind="stable"))


def _required(component: Component) -> tuple[Component, list[str], tuple[int, int]]:
    names = component.name[component.element != "H"].tolist()
    in_protein = len(names) - ("OXT" in names)
    in_nucleic = len(names) - ("OP3" in names or "O3P" in names)
    return component, names, (in_protein, in_nucleic)


def _leaving_oxygen(component: Component, seen: set[str], required: list[str]) -> str | None:
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
    mask = atoms.kind == LIGAND
    chains = np.unique(atoms.chain[mask])
    starts = atoms.residue_starts()
    names, counts = np.unique(atoms.chain[starts], return_counts=True)
    several = set(names[counts > 1].tolist())
    one, two, kind = atoms.bonds.T
    between = (atoms.chain[one] != atoms.chain[two]) & (kind != COORDINATION)
    bound = set(atoms.chain[one[between]].tolist()) | set(atoms.chain[two[between]].tolist())
    return set(chains.tolist()) & (several | bound)


def entity_numbers(record: EntryRecord) -> list[int]:
    """Number of every entity: its name, or its row from 1."""
    return [
        int(entity.name) if entity.name.isdecimal() else row
        for row, entity in enumerate(record.entities, 1)
    ]


def _with_absent_residues(
    atoms: AtomRows, record: EntryRecord, components: ComponentTable
) -> AtomRows:
    numbers = dict(zip(entity_numbers(record), record.entities, strict=True))
    parts: list[_Residue] = []
    for low, stop in runs(atoms.chain_starts(), len(atoms)):
        kind = int(atoms.kind[low])
        monomers = numbers[int(atoms.entity[low])].monomers
        if kind == LIGAND or not monomers:  # without a sequence nobody knows what is absent
            continue
        for gap in _gaps(atoms.res_id[low:stop], low, len(monomers)):
            for number in range(gap.first, gap.last + 1):
                terminal = gap.is_end and number == gap.last
                leaving: tuple[str, ...] = ("OXT",)
                if kind != PROTEIN:
                    terminal, leaving = gap.is_start and number == gap.first, ("OP3", "O3P")
                component = components[monomers[number - 1]]
                mask = component.element != "H"
                if not terminal:
                    mask &= ~np.isin(component.name, leaving)
                parts.append(_Residue(gap, number, component, np.flatnonzero(mask)))
    if not parts:
        return atoms
    counts = [len(part.atoms) for part in parts]
    values = (
        np.concatenate([getattr(part.component, column)[part.atoms] for part in parts])
        for column in ("name", "element", "charge")
    )
    new = atoms.unseen(np.repeat([part.gap.like for part in parts], counts), *values)
    new.insertion[:] = ""
    new.res_id = np.repeat([part.number for part in parts], counts)
    new.res_name = np.repeat([part.component.code for part in parts], counts)
    standard = np.where(
        new.kind == PROTEIN,
        np.isin(new.res_name, STANDARD_PROTEIN),
        np.isin(new.res_name, STANDARD_NUCLEIC),
    )
    new.hetero = ~standard
    keys = np.repeat([part.key() for part in parts], counts)
    there = (np.arange(len(atoms)) * 2 + 2) * _STEP - 1
    return joined_rows([atoms, new]).take(np.argsort(np.concatenate([there, keys]), kind="stable"))


_STEP: Final = 1 << 24


class _Gap(NamedTuple):
    before: int
    """Atom that the residues stand before."""
    first: int
    last: int
    like: int
    """Atom whose chain it is."""
    is_start: bool
    is_end: bool


class _Residue(NamedTuple):
    gap: _Gap
    number: int
    component: Component
    atoms: Integer[np.ndarray, " n"]

    def key(self) -> int:
        # The start of a chain stands behind the end of the one before.
        return (self.gap.before * 2 + self.gap.is_start) * _STEP + self.number


def _gaps(ids: Integer[np.ndarray, " n"], low: int, length: int) -> list[_Gap]:
    """Numbers of a sequence that no atom of a chain has."""
    gaps = []
    if ids[0] > 1:
        gaps.append(_Gap(low, 1, int(ids[0]) - 1, low, True, False))
    for jump in np.flatnonzero(np.diff(ids) > 1).tolist():
        first, last = int(ids[jump]) + 1, int(ids[jump + 1]) - 1
        gaps.append(_Gap(low + jump + 1, first, last, low + jump, False, False))
    if ids[-1] < length:
        stop = low + len(ids)
        gaps.append(_Gap(stop, int(ids[-1]) + 1, length, stop - 1, False, True))
    return gaps

"""Unresolved atoms and residues, as Protenix adds them, without atoms that bonds displaced."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    ResiduePlan,
    build_residues,
    residues_and_gaps,
    segment_ids,
)
from evofeed.featurize.records.rulesets.bonds import chain_bonds, merged_bonds, residue_bonds
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import LIGAND, PROTEIN


def _link_kind(component: Component) -> int:
    """The `link_kind` of `chain_bonds`."""
    return {PROTEIN: 1, LIGAND: 0}.get(component.kind, 2)


def polymer_bonds(
    atoms: AtomRows,
    components: ComponentTable,
    starts: Integer[np.ndarray, " r"],
    *,
    limit: float | None = None,
) -> Integer[np.ndarray, "B 3"]:
    """Bonds of the atoms and between consecutive residues, unless one has another bond instead.
    Added bonds between chains of the file are at most `limit` ångström long."""
    added = chain_bonds(atoms, components, starts, _link_kind)
    number = segment_ids(starts, len(atoms))
    first, second = atoms.bonds[:, 0], atoms.bonds[:, 1]
    same_chain = atoms.chain[first] == atoms.chain[second]
    adjacent = same_chain & (np.abs(number[first] - number[second]) == 1)
    displaced = np.zeros(len(atoms), bool)
    for end, partner in ((first, second), (second, first)):
        crosslinked = adjacent & ~np.isin(atoms.name[partner], ("C", "P"))
        displaced[end[crosslinked]] = True
    ends = np.where(np.isin(atoms.name[added[:, 0]], ("N", "O3'")), added[:, 0], added[:, 1])
    keep = ~displaced[ends]
    if limit is not None:
        far = np.linalg.norm(atoms.position[added[:, 0]] - atoms.position[added[:, 1]], axis=1)
        keep &= (atoms.asym[added[:, 0]] == atoms.asym[added[:, 1]]) | ~(far > limit)
    rejected = added[~keep]
    removed = np.isin(first, rejected[:, 0]) & np.isin(second, rejected[:, 1])
    return merged_bonds(atoms.bonds[~removed], added[keep])


def bonded_atoms(size: int, bonds: Integer[np.ndarray, "B w"]) -> list[list[int]]:
    """Bonded atoms of every atom."""
    bonded: list[list[int]] = [[] for _ in range(size)]
    for first, second in bonds[:, :2].tolist():
        bonded[first].append(second)
        bonded[second].append(first)
    return bonded


def bonded_heavy_atoms(component: Component) -> list[list[int]]:
    """Heavy atoms bonded to every heavy atom of a component."""
    bonds = component.bond[component.heavy[component.bond].all(1)]
    return bonded_atoms(len(component.name), bonds)


def leaving_groups(component: Component) -> Mapping[str, list[list[str]]] | None:
    """Groups of leaving heavy atoms by the atom they leave; None if one is bonded to two."""
    heavy, leaving = component.heavy, component.leaving
    bonded = bonded_heavy_atoms(component)
    names = component.name.tolist()
    groups: dict[str, list[list[str]]] = defaultdict(list)
    for centre in np.flatnonzero(heavy & ~leaving).tolist():
        for first in [atom for atom in bonded[centre] if leaving[atom]]:
            bonded[centre].remove(first)
            bonded[first].remove(centre)
            group, todo = {first}, [first]
            while todo:
                added = [atom for atom in bonded[todo.pop()] if atom not in group]
                group.update(added)
                todo += added
            if not all(leaving[atom] for atom in group):
                return None
            groups[names[centre]].append([names[atom] for atom in sorted(group)])
    return groups


def _leaving_atoms(
    groups: list[list[str]], count: int, resolved: Mapping[str, object]
) -> list[str]:
    """Atoms of `count` leaving groups, one for each bond, unresolved groups first."""
    ordered = sorted(groups, key=lambda group: any(name in resolved for name in group))
    return [name for group in ordered[:count] for name in group]


class Completion:
    """Completes the atoms of an asymmetric unit; `chain` and `res_id` are the file's labels."""

    def __init__(
        self, atoms: AtomRows, components: ComponentTable, monomers: Mapping[int, Sequence[str]]
    ) -> None:
        """Args:
        atoms: the resolved atoms.
        monomers: components of every polymer, by `AtomRows.entity`.
        """
        self.atoms = atoms
        self.components = components
        self.monomers = monomers
        self.bonded = bonded_atoms(len(atoms), atoms.bonds)
        self.groups = functools.cache(lambda code: leaving_groups(components[code]))
        self.rows_by_name: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(dict)
        keys = zip(atoms.entity.tolist(), atoms.res_id.tolist(), atoms.name.tolist(), strict=True)
        for row, (entity, number, name) in enumerate(keys):
            self.rows_by_name[entity, number].setdefault(name, []).append(row)
        self.bond_counts = self._bond_counts()
        self.residue_rows = {
            entity: [
                self._residue_rows(entity, number, code) for number, code in enumerate(codes, 1)
            ]
            for entity, codes in monomers.items()
        }

    def _bond_counts(self) -> Counter[tuple[int, int, str]]:
        """Number of bonds to other residues by entity, residue and atom: the most in any copy."""
        atoms = self.atoms
        counts: Counter[tuple[int, int, str]] = Counter()
        for entity, codes in self.monomers.items():
            kinds = [_link_kind(self.components[code]) for code in codes]
            names = [set(self.components[code].name.tolist()) for code in codes]
            for number in range(1, len(codes)):
                kind = kinds[number - 1]
                if not kind or kind != kinds[number]:
                    continue
                tail, head = (("C", "N"), ("O3'", "P"))[kind - 1]
                if tail not in names[number - 1] or head not in names[number]:
                    continue
                if self._linked_in_all_copies(entity, number, tail, head):
                    # The atom with a leaving group: C of C and N, P of O3' and P.
                    key = (entity, number, tail) if kind == 1 else (entity, number + 1, head)
                    counts[key] = 1
        for row in range(len(atoms)):
            others = [
                atom
                for atom in self.bonded[row]
                if atoms.res_id[atom] != atoms.res_id[row] or atoms.chain[atom] != atoms.chain[row]
            ]
            if others:
                key = int(atoms.entity[row]), int(atoms.res_id[row]), str(atoms.name[row])
                counts[key] = max(counts[key], len(others))
        return counts

    def _linked_in_all_copies(self, entity: int, number: int, tail: str, head: str) -> bool:
        """True if every chain that has both ends has a bond between them."""
        chain = self.atoms.chain
        return all(
            head_row in self.bonded[tail_row]
            for tail_row in self.rows_by_name[entity, number].get(tail, ())
            for head_row in self.rows_by_name[entity, number + 1].get(head, ())
            if chain[tail_row] == chain[head_row]
        )

    def _residue_rows(self, entity: int, number: int, code: str) -> np.ndarray:
        """Component rows of the atoms that a polymer's residue has in every chain."""
        component = self.components[code]
        keep = component.heavy.copy()
        removed: list[str] = []
        for name in component.name[component.heavy].tolist():
            count = self.bond_counts.get((entity, number, name), 0)
            if not count:
                continue
            groups = self.groups(code)
            if groups is None:
                break
            resolved = self.rows_by_name[entity, number]
            if name in groups:
                removed += _leaving_atoms(groups[name], count, resolved)
            else:
                removed += self._missing_ends(component, name, resolved.get(name, [])[:1])
        keep &= ~np.isin(component.name, removed)
        return np.flatnonzero(keep)

    def _missing_ends(self, component: Component, name: str, rows: Sequence[int]) -> list[str]:
        """Atoms bonded to this one only that the file does not have."""
        if not rows or name not in component.rows:
            return []
        bonded = bonded_heavy_atoms(component)
        terminal = [atom for atom in bonded[component.rows[name]] if len(bonded[atom]) == 1]
        bonded_names = {str(self.atoms.name[atom]) for atom in self.bonded[rows[0]]}
        return [atom for atom in component.name[terminal].tolist() if atom not in bonded_names]

    def _ligand_rows(self, low: int, high: int, component: Component) -> np.ndarray:
        """Component rows of the atoms that a residue outside polymers has."""
        atoms = self.atoms
        groups = self.groups(component.code)
        assert groups is not None
        resolved = {str(name): row for row, name in enumerate(atoms.name[low:high].tolist(), low)}
        removed: list[str] = []
        for row in range(low, high):
            name = str(atoms.name[row])
            count = sum(bool(atoms.res_id[atom] != atoms.res_id[row]) for atom in self.bonded[row])
            if not count:
                continue
            if name not in groups:
                removed += self._missing_ends(component, name, [row])
                continue
            complete = all(any(atom in resolved for atom in group) for group in groups[name])
            if count < len(groups[name]) and name in ("B", "BE") and complete:
                continue
            removed += _leaving_atoms(groups[name], count, resolved)
        return np.flatnonzero(component.heavy & ~np.isin(component.name, removed))

    def complete_atoms(self) -> AtomRows:
        """All atoms and bonds; unresolved atoms have row -1 and NaN coordinates."""
        atoms, entity = self.atoms, self.atoms.entity.tolist()
        lengths = {entity: len(codes) for entity, codes in self.monomers.items()}
        residues = residues_and_gaps(atoms, lambda row: lengths.get(entity[row], 0))
        built = build_residues(atoms, [self._residue(*residue) for residue in residues])
        starts = built.residue_starts()
        built.bonds = merged_bonds(residue_bonds(built, self.components, starts), built.bonds)
        built.bonds = polymer_bonds(built, self.components, starts, limit=2.5)
        return built

    def _residue(self, low: int, high: int, number: int) -> ResiduePlan:
        """The atoms that a residue should have."""
        atoms, entity = self.atoms, int(self.atoms.entity[low])
        codes = self.monomers.get(entity)
        if low == high and codes:
            rows = self.residue_rows[entity][number - 1]
            unresolved = np.full(len(rows), -1)
            return ResiduePlan(low, self.components[codes[number - 1]], rows, unresolved, number)
        component = self.components.get(str(atoms.res_name[low]))
        residue = np.arange(low, high)
        if component is None or not component.heavy.any() or self.groups(component.code) is None:
            return ResiduePlan(low, None, residue, residue)
        if codes is not None:
            component = self.components[codes[number - 1]]
            rows = self.residue_rows[entity][number - 1]
        else:
            rows = self._ligand_rows(low, high, component)
        by_name = dict(zip(atoms.name[residue].tolist(), residue.tolist(), strict=True))
        names = component.name[rows].tolist()
        source = np.array([by_name.get(name, -1) for name in names], np.int64)
        if (source >= 0).sum() <= len(residue) / 2:  # not the residue of the sequence
            source[:] = -1
        return ResiduePlan(low, component, rows, source)

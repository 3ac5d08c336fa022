"""Atoms and residues that nobody saw, as Protenix adds them, and atoms that bonds displaced."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.featurize.records.rulesets.atom_rows import (
    AtomRows,
    Part,
    laid_out,
    residues_and_gaps,
    spread,
)
from evofeed.featurize.records.rulesets.bonds import chain_bonds, merged_bonds, residue_bonds
from evofeed.protein.components import Component, ComponentTable
from evofeed.protein.entry_record import LIGAND, PROTEIN


def _joins(component: Component) -> int:
    """How it joins its neighbours, as `chain_bonds` numbers it."""
    return {PROTEIN: 1, LIGAND: 0}.get(component.kind, 2)


def polymer_bonds(
    atoms: AtomRows,
    components: ComponentTable,
    starts: Integer[np.ndarray, " r"],
    *,
    limit: float | None = None,
) -> Integer[np.ndarray, "B 3"]:
    """Bonds of atoms and those between residues that follow each other, but where one has another
    bond instead. Between chains of the file they are at most `limit` ångström long.
    """
    added = chain_bonds(atoms, components, starts, _joins)
    number = spread(starts, len(atoms))
    one, two = atoms.bonds[:, 0], atoms.bonds[:, 1]
    beside = (np.abs(number[one] - number[two]) == 1) & (atoms.chain[one] == atoms.chain[two])
    odd = np.zeros(len(atoms), bool)
    for here, there in ((one, two), (two, one)):
        other = beside & ~np.isin(atoms.name[there], ("C", "P"))
        odd[here[other]] = True
    ends = np.where(np.isin(atoms.name[added[:, 0]], ("N", "O3'")), added[:, 0], added[:, 1])
    keep = ~odd[ends]
    if limit is not None:
        far = np.linalg.norm(atoms.position[added[:, 0]] - atoms.position[added[:, 1]], axis=1)
        keep &= (atoms.asym[added[:, 0]] == atoms.asym[added[:, 1]]) | ~(far > limit)
    out = added[~keep]
    gone = np.isin(one, out[:, 0]) & np.isin(two, out[:, 1])
    return merged_bonds(atoms.bonds[~gone], added[keep])


def neighbours(size: int, bonds: Integer[np.ndarray, "B w"]) -> list[list[int]]:
    """Bonded atoms of every atom."""
    near: list[list[int]] = [[] for _ in range(size)]
    for one, two in bonds[:, :2].tolist():
        near[one].append(two)
        near[two].append(one)
    return near


def heavy_neighbours(component: Component) -> list[list[int]]:
    """Heavy atoms bonded to every heavy atom of a component."""
    bonds = component.bond[component.heavy[component.bond].all(1)]
    return neighbours(len(component.name), bonds)


def leaving_groups(component: Component) -> Mapping[str, list[list[str]]] | None:
    """Groups of heavy atoms that leave, by the atom they leave; None if one is bonded to two."""
    heavy, leaving = component.heavy, component.leaving
    near = heavy_neighbours(component)
    names = component.name.tolist()
    groups: dict[str, list[list[str]]] = defaultdict(list)
    for centre in np.flatnonzero(heavy & ~leaving).tolist():
        for first in [one for one in near[centre] if leaving[one]]:
            near[centre].remove(first)
            near[first].remove(centre)
            group, todo = {first}, [first]
            while todo:
                fresh = [one for one in near[todo.pop()] if one not in group]
                group.update(fresh)
                todo += fresh
            if not all(leaving[one] for one in group):
                return None
            groups[names[centre]].append([names[one] for one in sorted(group)])
    return groups


class Completion:
    """Atoms of an asymmetric unit made whole; `chain` and `res_id` are the file's labels."""

    def __init__(
        self, atoms: AtomRows, components: ComponentTable, monomers: Mapping[int, Sequence[str]]
    ) -> None:
        """Args:
        atoms: what was seen.
        monomers: components of every polymer, by `AtomRows.entity`.
        """
        self.atoms = atoms
        self.components = components
        self.monomers = monomers
        self.near = neighbours(len(atoms), atoms.bonds)
        self.groups = functools.cache(lambda code: leaving_groups(components[code]))
        self.seen: dict[tuple[int, int], dict[str, list[int]]] = defaultdict(dict)
        keys = zip(atoms.entity.tolist(), atoms.res_id.tolist(), atoms.name.tolist(), strict=True)
        for row, (entity, number, name) in enumerate(keys):
            self.seen[entity, number].setdefault(name, []).append(row)
        self.bonds_of = self._bond_counts()
        self.templates = {
            entity: [self._template(entity, number, code) for number, code in enumerate(codes, 1)]
            for entity, codes in monomers.items()
        }

    def _bond_counts(self) -> Counter[tuple[int, int, str]]:
        """Bonds to other residues of every atom of an entity, of the copy with most."""
        atoms = self.atoms
        counts: Counter[tuple[int, int, str]] = Counter()
        for entity, codes in self.monomers.items():
            kinds = [_joins(self.components[code]) for code in codes]
            names = [set(self.components[code].name.tolist()) for code in codes]
            for number in range(1, len(codes)):
                kind = kinds[number - 1]
                if not kind or kind != kinds[number]:
                    continue
                tail, head = (("C", "N"), ("O3'", "P"))[kind - 1]
                if tail not in names[number - 1] or head not in names[number]:
                    continue
                if self._joined(entity, number, tail, head):
                    # Of C and N the one is C, of O3' and P the other is P.
                    key = (entity, number, tail) if kind == 1 else (entity, number + 1, head)
                    counts[key] = 1
        for row in range(len(atoms)):
            other = [
                one
                for one in self.near[row]
                if atoms.res_id[one] != atoms.res_id[row] or atoms.chain[one] != atoms.chain[row]
            ]
            if other:
                key = int(atoms.entity[row]), int(atoms.res_id[row]), str(atoms.name[row])
                counts[key] = max(counts[key], len(other))
        return counts

    def _joined(self, entity: int, number: int, tail: str, head: str) -> bool:
        """Whether no chain has both ends without a bond between them."""
        chain = self.atoms.chain
        return all(
            two in self.near[one]
            for one in self.seen[entity, number].get(tail, ())
            for two in self.seen[entity, number + 1].get(head, ())
            if chain[one] == chain[two]
        )

    def _template(self, entity: int, number: int, code: str) -> np.ndarray:
        """Rows of the component's atoms that a residue of a polymer has, in every chain."""
        component = self.components[code]
        keep = component.heavy.copy()
        out: list[str] = []
        for name in component.name[component.heavy].tolist():
            count = self.bonds_of.get((entity, number, name), 0)
            if not count:
                continue
            groups = self.groups(code)
            if groups is None:
                break
            held = self.seen[entity, number]
            if name in groups:
                out += self._chosen(groups[name], count, held)
            else:
                out += self._unlisted(component, name, held.get(name, [])[:1])
        keep &= ~np.isin(component.name, out)
        return np.flatnonzero(keep)

    def _chosen(self, groups: list[list[str]], count: int, held: Mapping[str, object]) -> list[str]:
        """Atoms of as many groups as there are bonds, those that nobody saw first."""
        there = [any(name in held for name in group) for group in groups]
        order = sorted(range(len(groups)), key=there.__getitem__)
        return [name for place in order[:count] for name in groups[place]]

    def _unlisted(self, component: Component, name: str, rows: Sequence[int]) -> list[str]:
        """Atoms that hang on this one alone and that the file does not have."""
        if not rows or name not in component.rows:
            return []
        near = heavy_neighbours(component)
        ends = [one for one in near[component.rows[name]] if len(near[one]) == 1]
        here = {str(self.atoms.name[one]) for one in self.near[rows[0]]}
        return [one for one in component.name[ends].tolist() if one not in here]

    def _alone(self, low: int, high: int, component: Component) -> np.ndarray:
        """Rows of the component's atoms that a residue of no polymer has."""
        atoms = self.atoms
        groups = self.groups(component.code)
        assert groups is not None
        held = {str(name): row for row, name in enumerate(atoms.name[low:high].tolist(), low)}
        out: list[str] = []
        for row in range(low, high):
            name = str(atoms.name[row])
            count = sum(bool(atoms.res_id[one] != atoms.res_id[row]) for one in self.near[row])
            if not count:
                continue
            if name not in groups:
                out += self._unlisted(component, name, [row])
                continue
            whole = all(any(one in held for one in group) for group in groups[name])
            if count < len(groups[name]) and name in ("B", "BE") and whole:
                continue
            out += self._chosen(groups[name], count, held)
        return np.flatnonzero(component.heavy & ~np.isin(component.name, out))

    def whole(self) -> AtomRows:
        """All atoms, those that nobody saw with row -1 and NaN, and all bonds."""
        atoms, entity = self.atoms, self.atoms.entity.tolist()
        lengths = {entity: len(codes) for entity, codes in self.monomers.items()}
        walk = residues_and_gaps(atoms, lambda row: lengths.get(entity[row], 0))
        made = laid_out(atoms, [self._residue(*residue) for residue in walk])
        starts = made.residue_starts()
        made.bonds = merged_bonds(residue_bonds(made, self.components, starts), made.bonds)
        made.bonds = polymer_bonds(made, self.components, starts, limit=2.5)
        return made

    def _residue(self, low: int, high: int, number: int) -> Part:
        """A residue with the atoms it should have."""
        atoms, entity = self.atoms, int(self.atoms.entity[low])
        codes = self.monomers.get(entity)
        if low == high and codes:
            rows = self.templates[entity][number - 1]
            none = np.full(len(rows), -1)
            return Part(low, self.components[codes[number - 1]], rows, none, number)
        component = self.components.get(str(atoms.res_name[low]))
        own = np.arange(low, high)
        if component is None or not component.heavy.any() or self.groups(component.code) is None:
            return Part(low, None, own, own)
        if codes is not None:
            component = self.components[codes[number - 1]]
            rows = self.templates[entity][number - 1]
        else:
            rows = self._alone(low, high, component)
        held = dict(zip(atoms.name[own].tolist(), own.tolist(), strict=True))
        seen = np.array([held.get(name, -1) for name in component.name[rows].tolist()], np.int64)
        if (seen >= 0).sum() <= len(own) / 2:  # another residue than the sequence has
            seen[:] = -1
        return Part(low, component, rows, seen)

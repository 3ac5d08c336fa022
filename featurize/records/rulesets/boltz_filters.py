"""Which chains of an assembly Boltz trains on: its static filters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.featurize.records.rulesets.contacts import clashing, contacts, touching
from evofeed.featurize.records.rulesets.standard import (
    EXCLUDED_LIGANDS,
    STANDARD_NUCLEIC,
    STANDARD_PROTEIN,
    Rules,
)
from evofeed.protein.components import Component

PROTEIN, DNA, RNA, LIGAND = range(4)
STANDARD: Final = frozenset((*STANDARD_PROTEIN, *STANDARD_NUCLEIC))
"""Residues that are one token."""
_UNKNOWN: Final = {PROTEIN: "UNK", DNA: "DN", RNA: "N"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzRules(Rules):
    """Limits of Boltz's filters, and its faults by name: True does as Boltz does."""

    min_residues: int = 4
    """Residues of a polymer that were seen, at least."""
    max_residues: int = 5000
    """Residues of a polymer that were seen, at most."""
    max_step: float = 10.0
    """Ångström between the CA of neighbours."""
    clash_distance: float = 1.7
    """Ångström."""
    clash_fraction: float = 0.3
    """Of the atoms of a chain that were seen."""
    interface_distance: float = 5.0
    """Ångström."""
    links_required: bool = True
    """A covalent link whose atoms it does not have fails the entry."""
    links_by_number: bool = True
    """Without an assembly, ends of links are found by number, whatever component they name."""
    residues_by_alignment: bool = True
    """Residues are aligned to the sequence instead of numbered, so that one between two gaps may
    move; one that the sequence does not have fails the entry."""
    components_required: bool = True
    """A residue of a polymer without a component fails the entry."""
    max_len_of_resolved: bool = True
    """The longest polymers are told by the residues that were seen, not by their sequence."""
    modified_are_unknown: bool = True
    """Polymers of modified residues alone are left out as unknown ones are."""
    bonded_atoms_clash: bool = True
    """Atoms joined by a link count as a clash."""


@dataclass(slots=True)
class Residue:
    """One residue in the component's order of atoms."""

    index: int
    source: int
    """Residue of the record; -1 if nobody saw it."""
    component: Component
    keep: Bool[np.ndarray, " a"]
    """Atoms of the component that it has."""
    rows: list[int]
    """Atoms of the record; -1 for one that nobody saw."""
    bonds: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its component."""
        return self.component.code

    @property
    def names(self) -> list[str]:
        """Of its atoms."""
        names: list[str] = self.component.name[self.keep].tolist()
        return names


@dataclass(slots=True)
class Chain:
    """A chain of the asymmetric unit."""

    asym: int
    kind: int
    entity: int
    residues: list[Residue]


@dataclass(slots=True)
class Assembly:
    """The assembly's chains with coordinates, NaN for atoms that nobody saw."""

    chains: list[Chain]
    kinds: Integer[np.ndarray, " C"]
    residues: list[Residue]
    counts: Integer[np.ndarray, " R1"]
    sizes: Integer[np.ndarray, " C1"]
    chain_of: Integer[np.ndarray, " A"]
    position: Float[np.ndarray, "A 3"]
    links: list[tuple[int, int, int]]

    def refusal(self, row: int, rules: BoltzRules) -> str:
        """Why a filter refuses a chain by itself; empty if none does."""
        chain, kind = self.chains[row], int(self.kinds[row])
        if kind == LIGAND:
            excluded = any(one.name in EXCLUDED_LIGANDS for one in chain.residues)
            return "an excluded ligand" if excluded else ""
        seen = sum(one.source >= 0 for one in chain.residues)
        longest = seen if rules.max_len_of_resolved else len(chain.residues)
        if seen < rules.min_residues:
            return "a short polymer"
        if longest > rules.max_residues:
            return "a long polymer"
        unknown = {_UNKNOWN[kind]}
        names = {one.name for one in chain.residues}
        if rules.modified_are_unknown and kind == PROTEIN:
            names = {name if name in STANDARD else "UNK" for name in names}
        if names == unknown:
            return "all residues are unknown"
        if kind == PROTEIN and self._has_jump(row, rules.max_step):
            return "a jump between neighbouring residues"
        return ""

    def _has_jump(self, row: int, limit: float) -> bool:
        low, high = self.sizes[row : row + 2]
        own, first = self.residues[low:high], self.counts[low:high]
        centre = [one.names.index("CA") if one.name in STANDARD else 0 for one in own]
        position = self.position[first + np.array(centre)]
        position[[one.source < 0 for one in own]] = np.nan
        step = np.linalg.norm(position[1:] - position[:-1], axis=1)
        return bool((step > limit).any())

    def clashing(self, rules: BoltzRules) -> set[int]:
        """Chains left out because too many of their atoms are too near to another chain."""
        pairs = contacts(self.position, self.chain_of, rules.clash_distance)
        if not rules.bonded_atoms_clash and self.links:
            linked = {tuple(sorted(link[:2])) for link in self.links}
            pairs = pairs[[tuple(pair) not in linked for pair in pairs.tolist()]]
        there = np.isfinite(self.position).all(1)
        seen = np.bincount(self.chain_of[there], minlength=len(self.chains))
        return clashing(touching(pairs, self.chain_of), seen, rules.clash_fraction)

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
)
from evofeed.protein.components import Component

PROTEIN, DNA, RNA, LIGAND = range(4)
STANDARD: Final = frozenset((*STANDARD_PROTEIN, *STANDARD_NUCLEIC))
"""Residues that are one token."""
_UNKNOWN: Final = {PROTEIN: "UNK", DNA: "DN", RNA: "N"}
_MIN_RESIDUES, _MAX_RESIDUES = 4, 5000
"""Residues of a polymer that were seen."""
_MAX_STEP: Final = 10.0
"""Ångström between the CA of neighbours."""
_CLASH_DISTANCE, _CLASH_FRACTION = 1.7, 0.3
"""Ångström, and the share of a chain's atoms that were seen."""


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

    def refusal(self, row: int) -> str:
        """Why a filter refuses a chain by itself; empty if none does."""
        chain, kind = self.chains[row], int(self.kinds[row])
        if kind == LIGAND:
            excluded = any(one.name in EXCLUDED_LIGANDS for one in chain.residues)
            return "an excluded ligand" if excluded else ""
        seen = sum(one.source >= 0 for one in chain.residues)
        if seen < _MIN_RESIDUES:
            return "a short polymer"
        if seen > _MAX_RESIDUES:
            return "a long polymer"
        unknown = {_UNKNOWN[kind]}
        names = {one.name for one in chain.residues}
        if kind == PROTEIN:  # modified residues are unknown ones
            names = {name if name in STANDARD else "UNK" for name in names}
        if names == unknown:
            return "all residues are unknown"
        if kind == PROTEIN and self._has_jump(row):
            return "a jump between neighbouring residues"
        return ""

    def _has_jump(self, row: int) -> bool:
        low, high = self.sizes[row : row + 2]
        own, first = self.residues[low:high], self.counts[low:high]
        centre = [one.names.index("CA") if one.name in STANDARD else 0 for one in own]
        position = self.position[first + np.array(centre)]
        position[[one.source < 0 for one in own]] = np.nan
        step = np.linalg.norm(position[1:] - position[:-1], axis=1)
        return bool((step > _MAX_STEP).any())

    def clashing(self) -> set[int]:
        """Chains left out because too many of their atoms are too near to another chain."""
        pairs = contacts(self.position, self.chain_of, _CLASH_DISTANCE)  # those of a link, too
        there = np.isfinite(self.position).all(1)
        seen = np.bincount(self.chain_of[there], minlength=len(self.chains))
        return clashing(touching(pairs, self.chain_of), seen, _CLASH_FRACTION)

"""Molecules of an entry as Protenix counts them: chains joined by bonds, and their kinds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.views.entry_view import ChainType, ProtenixView


@dataclass(frozen=True, slots=True)
class Molecules:
    """Which molecule a chain belongs to, and which kind of molecule that is, C chains."""

    molecule: Integer[np.ndarray, " C"]
    """From 0, in the order of the first name among a molecule's chains."""
    kind: Integer[np.ndarray, " C"]
    """Equal for molecules of the same entities whose atoms have the same names."""
    first: Integer[np.ndarray, " C"]
    """Atoms of the molecule that stand before the chain."""


def molecules_of(view: ProtenixView) -> Molecules:
    """The molecules of a whole entry. Bonds of atoms that nobody saw, and those between polymers,
    join none."""
    size = np.diff(view.residue_atom[view.chain_residue])
    chain = np.repeat(np.arange(view.num_chains), size)
    ends = chain[view.bond_atom]
    polymer = view.chain_polymer != ChainType.LIGAND
    joins = (ends[:, 0] != ends[:, 1]) & view.atom_present[view.bond_atom].all(1)
    joins &= ~polymer[ends].all(1)
    root = np.arange(view.num_chains)
    for one, two in ends[joins].tolist():
        low, high = sorted((root[one], root[two]))
        root[root == high] = low
    by_name = np.argsort(view.chain_name, kind="stable")
    _, first, inverse = np.unique(root[by_name], return_index=True, return_inverse=True)
    molecule = np.empty(view.num_chains, np.int64)
    molecule[by_name] = np.argsort(np.argsort(first, kind="stable"), kind="stable")[inverse]
    kind, before = np.empty(len(first), np.int64), np.zeros(view.num_chains, np.int64)
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    names = [b""] * len(first)
    bounds = view.residue_atom[view.chain_residue]
    for number in range(len(first)):
        own = np.flatnonzero(molecule == number)
        before[own] = np.cumsum(size[own]) - size[own]
        groups[tuple(sorted(view.chain_entity[own].tolist()))].append(number)
        names[number] = b"".join(
            view.atom_name[bounds[one] : bounds[one + 1]].tobytes() for one in own
        )
    count = 0
    for members in groups.values():
        known: dict[bytes, int] = {}
        for place, number in enumerate(members):
            if place and names[number] not in known:
                count += 1
            kind[number] = known.setdefault(names[number], count)
        count += 1
    return Molecules(molecule, kind[molecule], before)

"""Summaries of a complex for plots: chains, interfaces, partners, distances."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_numbers import pseudo_beta, thinned
from evofeed.protein.residues import ATOM_ORDER

CONTACT = 8.0
"""Ångström between CB atoms (of glycine CA)."""


@dataclass(frozen=True, slots=True)
class ChainOf:
    """A chain of a complex: its author's id, its numbers from 1, and its residues.

    Attributes:
        name: the author's id.
        chain_id: the chain record of its sequence.
        asym_id: of the chain.
        entity_id: of its sequence.
        sym_id: of the copy among those of its sequence.
        first: its first residue in the complex.
        num_res: its residues.
        resolved: those with a CA atom.
        interface: those near another chain.
    """

    name: str
    chain_id: str
    asym_id: int
    entity_id: int
    sym_id: int
    first: int
    num_res: int
    resolved: int
    interface: int


@dataclass(frozen=True, slots=True)
class Interface:
    """Two chains that touch: their asym ids, pairs of residues in contact, residues of each."""

    chains: tuple[int, int]
    contacts: int
    residues: tuple[int, int]


def chains_of(record: AssemblyRecord) -> list[ChainOf]:
    """The chains of a complex, entity by entity, as its coordinates lie."""
    seen = np.zeros(record.num_res, bool)
    near = seen.copy()
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        seen = record.all_atom_mask[:, ATOM_ORDER["CA"]] > 0
        from evofeed.protein.interfaces import (
            interface_residues,  # loads numba: no start waits for it
        )

        found = (record.all_atom_positions, record.all_atom_mask, record.asym_id())
        near[interface_residues(*found)] = True
    chains: list[ChainOf] = []
    first = 0
    numbers = chain_numbers([len(names) for names in record.copies]).T.tolist()
    for (chain, name), (asym, entity, sym) in zip(record.members, numbers, strict=True):
        own = slice(first, first + chain.num_res)
        counts = (int(seen[own].sum()), int(near[own].sum()))
        chains.append(
            ChainOf(name, chain.chain_id, asym, entity, sym, first, chain.num_res, *counts)
        )
        first += chain.num_res
    return chains


def interfaces_of(record: AssemblyRecord, chains: list[ChainOf]) -> list[Interface]:
    """The pairs of chains that touch, those with most contacts first."""
    beta, known = _pseudo_beta(record)
    points = [beta[c.first : c.first + c.num_res] for c in chains]
    here = [np.flatnonzero(known[c.first : c.first + c.num_res]) for c in chains]
    points = [own[at] for own, at in zip(points, here, strict=True)]
    low = np.array([p.min(0) if len(p) else np.full(3, np.inf) for p in points])
    high = np.array([p.max(0) if len(p) else np.full(3, -np.inf) for p in points])
    found = []
    for a in range(len(chains)):
        beside = (low[a] <= high + CONTACT).all(1) & (low <= high[a] + CONTACT).all(1)
        for b in np.flatnonzero(beside).tolist():
            if b <= a:
                continue
            touch = np.linalg.norm(points[a][:, None] - points[b], axis=-1) < CONTACT
            if touch.any():
                sides = (int(touch.any(1).sum()), int(touch.any(0).sum()))
                found.append(Interface((a + 1, b + 1), int(touch.sum()), sides))
    return sorted(found, key=lambda one: (-one.contacts, one.chains))


def shared_species(record: AssemblyRecord) -> int:
    """Species by which rows of different chains are paired: of two sequences or more."""
    times = Counter(name for rows in record.pairing if rows for name in set(rows.msa_species))
    return sum(number > 1 for name, number in times.items() if name)


def pseudo_beta_distances(record: AssemblyRecord, residues: int = 0) -> np.ndarray:
    """`f64[n, n]` distances over all chains in ångström, NaN where unknown.

    Args:
        residues: thin them evenly to so many; 0 keeps all.
    """
    beta, known = _pseudo_beta(record)
    at = thinned(np.arange(record.num_res), residues)
    points = np.where(known[at, None], beta[at], np.nan)
    distance: np.ndarray = np.linalg.norm(points[:, None] - points, axis=-1)
    return distance


def _pseudo_beta(record: AssemblyRecord) -> tuple[np.ndarray, np.ndarray]:
    """CB atoms, of glycine CA, `f64[L, 3]`, and which are known."""
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return np.zeros([record.num_res, 3]), np.zeros(record.num_res, bool)
    beta, known = pseudo_beta(record.aatype, record.all_atom_positions, record.all_atom_mask)
    return beta.astype(float), known

"""Summaries of a complex for plots: chains, interfaces, partners, distances."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_numbers import pseudo_beta, thinned
from evofeed.protein.residues import ATOM_ORDER

CONTACT = 8.0
"""Ångström between CB atoms (CA of glycine)."""


@dataclass(frozen=True, slots=True)
class ChainOf:
    """A chain of a complex: its author's id, its numbers from 1, and counts of residues.

    Attributes:
        name: the author's id.
        chain_id: id of the chain record of its sequence.
        asym_id: number of the chain.
        entity_id: number of its sequence.
        sym_id: number of the copy among the chains of its sequence.
        first: index of its first residue in the complex.
        num_res: residues.
        resolved: residues with a CA atom.
        interface: residues near another chain.
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
    """Two chains in contact: their asym ids, residue pairs in contact, residues of each chain."""

    chains: tuple[int, int]
    contacts: int
    residues: tuple[int, int]


def chains_of(record: AssemblyRecord) -> list[ChainOf]:
    """The chains of a complex, entity by entity, in the order of its coordinates."""
    resolved = np.zeros(record.num_res, bool)
    interface = resolved.copy()
    if record.all_atom_positions is not None and record.all_atom_mask is not None:
        from evofeed.protein import interfaces  # not at the top: loads numba

        resolved = record.all_atom_mask[:, ATOM_ORDER["CA"]] > 0
        structure = (record.all_atom_positions, record.all_atom_mask, record.asym_id())
        interface[interfaces.interface_residues(*structure)] = True
    chains: list[ChainOf] = []
    first = 0
    numbers = chain_numbers([len(names) for names in record.copies]).T.tolist()
    for (chain, name), (asym, entity, sym) in zip(record.members, numbers, strict=True):
        residues = slice(first, first + chain.num_res)
        counts = (int(resolved[residues].sum()), int(interface[residues].sum()))
        chains.append(
            ChainOf(name, chain.chain_id, asym, entity, sym, first, chain.num_res, *counts)
        )
        first += chain.num_res
    return chains


def interfaces_of(record: AssemblyRecord, chains: list[ChainOf]) -> list[Interface]:
    """Pairs of chains in contact, the pair with most contacts first."""
    beta, resolved = _pseudo_beta(record)
    spans = [slice(chain.first, chain.first + chain.num_res) for chain in chains]
    points = [beta[span][resolved[span]] for span in spans]
    low = np.array([p.min(0) if len(p) else np.full(3, np.inf) for p in points])
    high = np.array([p.max(0) if len(p) else np.full(3, -np.inf) for p in points])
    interfaces = []
    for a in range(len(chains)):
        boxes_meet = (low[a] <= high + CONTACT).all(1) & (low <= high[a] + CONTACT).all(1)
        for b in np.flatnonzero(boxes_meet).tolist():
            if b <= a:
                continue
            contacts = np.linalg.norm(points[a][:, None] - points[b], axis=-1) < CONTACT
            if contacts.any():
                residues = (int(contacts.any(1).sum()), int(contacts.any(0).sum()))
                interfaces.append(Interface((a + 1, b + 1), int(contacts.sum()), residues))
    return sorted(interfaces, key=lambda interface: (-interface.contacts, interface.chains))


def shared_species(record: AssemblyRecord) -> int:
    """Number of species in the rows to pair of two sequences or more."""
    counts = Counter(name for rows in record.pairing if rows for name in set(rows.msa_species))
    return sum(count > 1 for name, count in counts.items() if name)


def pseudo_beta_distances(record: AssemblyRecord, residues: int = 0) -> np.ndarray:
    """`f64[n, n]` distances over all chains in ångström, NaN where unknown.

    Args:
        residues: maximum number of residues, evenly spread; 0 keeps all.
    """
    beta, resolved = _pseudo_beta(record)
    rows = thinned(np.arange(record.num_res), residues)
    points = np.where(resolved[rows, None], beta[rows], np.nan)
    distance: np.ndarray = np.linalg.norm(points[:, None] - points, axis=-1)
    return distance


def _pseudo_beta(record: AssemblyRecord) -> tuple[np.ndarray, np.ndarray]:
    """CB atoms (CA of glycine) `f64[L, 3]`, and the mask of resolved ones."""
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return np.zeros([record.num_res, 3]), np.zeros(record.num_res, bool)
    beta, resolved = pseudo_beta(record.aatype, record.all_atom_positions, record.all_atom_mask)
    return beta.astype(float), resolved

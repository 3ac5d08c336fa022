"""What there is to see of a complex, as plain values: chains, interfaces, partners, distances."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from evofeed.protein.assembly_record import AssemblyRecord, chain_numbers
from evofeed.protein.chain_files import fasta_text
from evofeed.protein.chain_numbers import pseudo_beta, thinned
from evofeed.protein.residues import ATOM_ORDER
from evofeed.protein.structure_text import Structure, to_mmcif

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
    names = [name for names in record.copies for name in names]
    numbers = chain_numbers([len(names) for names in record.copies])
    for name, (asym, entity, sym) in zip(names, numbers.T.tolist(), strict=True):
        chain = record.chains[entity - 1]
        own = slice(first, first + chain.num_res)
        ids = (asym, entity, sym)
        counts = (int(seen[own].sum()), int(near[own].sum()))
        chains.append(ChainOf(name, chain.chain_id, *ids, first, chain.num_res, *counts))
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


def assembly_distances(record: AssemblyRecord, residues: int) -> tuple[np.ndarray, np.ndarray]:
    """`f64[n, n]` pseudo-beta distances over all chains, NaN where unknown, and each one's chain.

    Args:
        residues: thin them evenly to so many.
    """
    beta, known = _pseudo_beta(record)
    at = thinned(np.arange(record.num_res), residues)
    points = np.where(known[at, None], beta[at], np.nan)
    return np.linalg.norm(points[:, None] - points, axis=-1), record.asym_id()[at]


def assembly_fasta(record: AssemblyRecord) -> str:
    """The sequence of every chain, copies too, under their author's ids."""
    return "".join(
        fasta_text(f"{record.assembly_id}_{name}", chain.sequence, chain.description)
        for chain, names in zip(record.chains, record.copies, strict=True)
        for name in names
    )


def assembly_cif(record: AssemblyRecord) -> str:
    """Every chain's atoms as mmCIF; `ValueError` if it has no structure."""
    return to_mmcif(assembly_structure(record))


def assembly_structure(record: AssemblyRecord) -> Structure:
    """Every chain's atoms, residues numbered by the sequence, the B column 0.

    Chains have their author's ids, or letters where those are none that mmCIF takes as they are.

    Raises:
        ValueError: it has no structure.
    """
    if record.all_atom_positions is None or record.all_atom_mask is None:
        raise ValueError(f"{record.assembly_id} has no structure")
    pairs = [
        (chain, entity)
        for entity, (chain, names) in enumerate(zip(record.chains, record.copies, strict=True), 1)
        for _ in names
    ]
    return Structure(
        name=record.assembly_id,
        aatype=np.concatenate([chain.aatype for chain, _ in pairs]),
        residue_index=np.concatenate([np.arange(chain.num_res) for chain, _ in pairs]),
        positions=record.all_atom_positions,
        mask=record.all_atom_mask,
        confidence=np.zeros(record.num_res),
        chain=record.asym_id(),
        entity=np.repeat([e for _, e in pairs], [chain.num_res for chain, _ in pairs]),
        chain_names=record.chain_names,
    )


def _pseudo_beta(record: AssemblyRecord) -> tuple[np.ndarray, np.ndarray]:
    """CB atoms, of glycine CA, `f64[L, 3]`, and which are known."""
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return np.zeros([record.num_res, 3]), np.zeros(record.num_res, bool)
    pairs = zip(record.chains, record.copies, strict=True)
    aatype = np.concatenate([chain.aatype for chain, names in pairs for _ in names])
    beta, known = pseudo_beta(aatype, record.all_atom_positions, record.all_atom_mask)
    return beta.astype(float), known

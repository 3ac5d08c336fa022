"""Which molecules of an assembly Protenix keeps, and links that not every copy has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import AtomRows
from evofeed.featurize.records.rulesets.bonds import connected
from evofeed.featurize.records.rulesets.contacts import clashing, contacts, touching
from evofeed.featurize.records.rulesets.standard import STANDARD_NUCLEIC, STANDARD_PROTEIN
from evofeed.protein.entry_record import LIGAND

_NEAR = 15.0


def centre_atoms(atoms: AtomRows) -> Bool[np.ndarray, " A"]:
    """CA or C1' of standard residues, every atom of others."""
    protein = np.isin(atoms.res_name, STANDARD_PROTEIN)
    standard = (protein | np.isin(atoms.res_name, STANDARD_NUCLEIC)) & (atoms.kind != LIGAND)
    mask: np.ndarray = ~standard | (atoms.name == np.where(protein, "CA", "C1'"))
    return mask


def near_molecules(atoms: AtomRows, most: int, max_tokens: int) -> Bool[np.ndarray, " A"] | None:
    """Atoms of the molecules around a token at an interface; None if there is no interface.

    Molecules are what bonds join. The token is drawn, always the same way.
    """
    label = connected(len(atoms), atoms.bonds)
    if len(np.unique(label)) <= most:
        return np.ones(len(atoms), bool)
    centre = centre_atoms(atoms)
    rows = np.flatnonzero(centre & (atoms.row >= 0))
    pairs = contacts(atoms.position[rows], label[rows], _NEAR)
    near = np.zeros(len(rows), bool)
    near[pairs.ravel()] = True
    order = np.arange(len(rows))
    np.random.default_rng(seed=42).shuffle(order)
    chosen = order[near[order]]
    if not len(chosen):
        return None
    step = atoms.position[rows].astype(np.float64) - atoms.position[rows[chosen[0]]]
    by_distance = np.argsort(np.sqrt((step * step).sum(1)), kind="stable")
    sizes = np.bincount(label[centre], minlength=len(atoms))
    kept: set[int] = set()
    tokens = 0
    for molecule in label[rows][by_distance].tolist():
        # Protenix counts a molecule's tokens anew at each of its atoms.
        if len(kept) >= most and tokens + sizes[molecule] > max_tokens:
            break
        kept.add(molecule)
        tokens += int(sizes[molecule])
    return np.isin(label, sorted(kept))


def clashing_chains(
    atoms: AtomRows, names: Sequence[str], distance: float, fraction: float
) -> set[int]:
    """Chains left out because too many of their centre atoms are too near to another chain."""
    rows = np.flatnonzero(centre_atoms(atoms) & (atoms.row >= 0))
    chain = atoms.chain[rows]
    pairs = contacts(atoms.position[rows], chain, distance)
    near = {
        pair: found
        for pair, found in touching(pairs, chain).items()
        if not _is_molecule(atoms, *pair)
    }
    counts = np.bincount(chain, minlength=len(names))
    return clashing(near, counts, fraction, rank=names.__getitem__)


def _is_molecule(atoms: AtomRows, one: int, two: int) -> bool:
    part = atoms.take(np.isin(atoms.chain, (one, two)))
    return len(np.unique(connected(len(part), part.bonds))) == 1


def lopsided_links(atoms: AtomRows, polymers: Collection[int]) -> Integer[np.ndarray, " n"]:
    """Rows of the bonds between chains, one of them a polymer, that not every copy has."""
    one, two = atoms.bonds[:, 0], atoms.bonds[:, 1]
    between = np.flatnonzero(atoms.chain[one] != atoms.chain[two])
    links = {tuple(atoms.bonds[row, :2].tolist()): row for row in between.tolist()}
    near: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for link in links:
        for end in link:
            near[end].append(link)
    entity, number, name = atoms.entity, atoms.res_id, atoms.name
    out: set[tuple[int, int]] = set()
    for link in links:
        if link in out:
            continue
        i, j = sorted(link, key=lambda end: int(entity[end]) not in polymers)
        if int(entity[i]) not in polymers:
            continue
        own = entity == entity[i]
        copies = len(np.unique(atoms.chain[own]))
        same = np.flatnonzero(own & (number == number[i]) & (name == name[i])).tolist()
        if len(same) != copies:
            out.add(link)
            continue
        found = set()
        alike = (entity[j], atoms.res_name[j], name[j])
        for row in same:
            for other in near[row]:
                far = other[1] if other[0] == row else other[0]
                if (entity[far], atoms.res_name[far], name[far]) != alike:
                    continue
                if int(entity[j]) in polymers and number[far] != number[j]:
                    continue
                found.add((row, other))
                break
        if len(found) != copies:
            out |= {other for _row, other in found}
    return np.array(sorted(links[link] for link in out), np.int64)

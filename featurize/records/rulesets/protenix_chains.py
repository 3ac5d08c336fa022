"""Molecules of an assembly that Protenix keeps, clashing chains and links to remove."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import AtomRows
from evofeed.featurize.records.rulesets.bonds import molecule_labels
from evofeed.featurize.records.rulesets.contacts import clashing_groups, contact_rows, contacts
from evofeed.featurize.records.rulesets.standard import STANDARD_NUCLEIC, STANDARD_PROTEIN
from evofeed.protein.entry_record import LIGAND

_NEAR = 15.0


def centre_atoms(atoms: AtomRows) -> Bool[np.ndarray, " A"]:
    """CA or C1' of standard residues, every atom of others."""
    protein = np.isin(atoms.res_name, STANDARD_PROTEIN)
    standard = (protein | np.isin(atoms.res_name, STANDARD_NUCLEIC)) & (atoms.kind != LIGAND)
    mask: np.ndarray = ~standard | (atoms.name == np.where(protein, "CA", "C1'"))
    return mask


def molecules_near_interface(
    atoms: AtomRows, limit: int, max_tokens: int
) -> Bool[np.ndarray, " A"] | None:
    """Mask of the molecules nearest to a token at an interface; None without an interface.

    Molecules are what bonds join. The token is drawn with a fixed seed, as in Protenix.
    """
    label = molecule_labels(len(atoms), atoms.bonds)
    if len(np.unique(label)) <= limit:
        return np.ones(len(atoms), bool)
    centre = centre_atoms(atoms)
    rows = np.flatnonzero(centre & (atoms.row >= 0))
    pairs = contacts(atoms.position[rows], label[rows], _NEAR)
    at_interface = np.zeros(len(rows), bool)
    at_interface[pairs.ravel()] = True
    order = np.arange(len(rows))
    np.random.default_rng(seed=42).shuffle(order)
    candidates = order[at_interface[order]]
    if not len(candidates):
        return None
    step = atoms.position[rows].astype(np.float64) - atoms.position[rows[candidates[0]]]
    by_distance = np.argsort(np.sqrt((step * step).sum(1)), kind="stable")
    sizes = np.bincount(label[centre], minlength=len(atoms))
    molecules: set[int] = set()
    tokens = 0
    for molecule in label[rows][by_distance].tolist():
        # As in Protenix, a molecule's tokens are counted again at each of its atoms.
        if len(molecules) >= limit and tokens + sizes[molecule] > max_tokens:
            break
        molecules.add(molecule)
        tokens += int(sizes[molecule])
    return np.isin(label, sorted(molecules))


def clashing_chains(
    atoms: AtomRows, names: Sequence[str], distance: float, fraction: float
) -> set[int]:
    """Chains to remove because too many of their centre atoms are too near another chain."""
    rows = np.flatnonzero(centre_atoms(atoms) & (atoms.row >= 0))
    chain = atoms.chain[rows]
    touching = contact_rows(contacts(atoms.position[rows], chain, distance), chain)
    near = {p: touched for p, touched in touching.items() if not _same_molecule(atoms, *p)}
    counts = np.bincount(chain, minlength=len(names))
    return clashing_groups(near, counts, fraction, rank=names.__getitem__)


def chains_without_centre(atoms: AtomRows) -> Integer[np.ndarray, " n"]:
    """Chains with resolved atoms, but without a resolved centre atom."""
    resolved = atoms.row >= 0
    return np.setdiff1d(atoms.chain[resolved], atoms.chain[resolved & centre_atoms(atoms)])


def _same_molecule(atoms: AtomRows, first: int, second: int) -> bool:
    part = atoms.take(np.isin(atoms.chain, (first, second)))
    return len(np.unique(molecule_labels(len(part), part.bonds))) == 1


def incomplete_links(atoms: AtomRows, polymers: Collection[int]) -> Integer[np.ndarray, " n"]:
    """Rows of bonds between a polymer and another chain that are missing in some copies."""
    first, second = atoms.bonds[:, 0], atoms.bonds[:, 1]
    between = np.flatnonzero(atoms.chain[first] != atoms.chain[second])
    links = {tuple(atoms.bonds[row, :2].tolist()): row for row in between.tolist()}
    links_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for link in links:
        for end in link:
            links_of[end].append(link)
    entity, number, name = atoms.entity, atoms.res_id, atoms.name
    incomplete: set[tuple[int, int]] = set()
    for link in links:
        if link in incomplete:
            continue
        i, j = sorted(link, key=lambda end: int(entity[end]) not in polymers)
        if int(entity[i]) not in polymers:
            continue
        of_entity = entity == entity[i]
        num_chains = len(np.unique(atoms.chain[of_entity]))
        ends = np.flatnonzero(of_entity & (number == number[i]) & (name == name[i])).tolist()
        if len(ends) != num_chains:
            incomplete.add(link)
            continue
        equivalent = set()
        partner = (entity[j], atoms.res_name[j], name[j])
        for row in ends:
            for candidate in links_of[row]:
                far = candidate[1] if candidate[0] == row else candidate[0]
                if (entity[far], atoms.res_name[far], name[far]) != partner:
                    continue
                if int(entity[j]) in polymers and number[far] != number[j]:
                    continue
                equivalent.add((row, candidate))
                break
        if len(equivalent) != num_chains:
            incomplete |= {candidate for _row, candidate in equivalent}
    return np.array(sorted(links[link] for link in incomplete), np.int64)

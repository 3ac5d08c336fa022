"""Boltz 1's limits, its faults by name, and its static filters of chains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.featurize.records.rulesets.atom_rows import AtomRows, segment_bounds, segment_ids
from evofeed.featurize.records.rulesets.cleaning import Rules
from evofeed.featurize.records.rulesets.contacts import clashing_groups, contact_rows, contacts
from evofeed.featurize.records.rulesets.standard import EXCLUDED_LIGANDS
from evofeed.protein.datapoints import RESTYPES
from evofeed.protein.entry_record import LIGAND, PROTEIN, run_starts

_UNKNOWN: Final = ("UNK", "DN", "N")
"""Unknown residue of each kind of polymer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzRules(Rules):
    """Limits of Boltz's filters, and its faults by name: True does as Boltz does."""

    min_residues: int = 4
    """Least number of resolved residues of a polymer."""
    max_residues: int = 5000
    """Largest number of resolved residues of a polymer."""
    max_step: float = 10.0
    """Largest distance between the CA of neighbours, ångström."""
    clash_distance: float = 1.7
    """Largest distance of clashing atoms, ångström."""
    clash_fraction: float = 0.3
    """Largest fraction of the resolved atoms of a chain that may clash."""
    interface_distance: float = 5.0
    """Largest distance of atoms of chains in contact, ångström."""
    merge_distance: float = 0.2
    """Least distance of the copies of one atom, ångström: nearer ones are one atom."""
    links_required: bool = True
    """A covalent link to an atom that Boltz does not have fails the entry."""
    links_by_number: bool = True
    """Without an assembly, ends of links are matched by residue number, ignoring the component and
    the operators."""
    residues_by_alignment: bool = True
    """Residues are aligned to the sequence instead of numbered, so that one between two gaps may
    move; one that the sequence does not have fails the entry."""
    components_required: bool = True
    """A residue of a polymer without a component fails the entry."""
    max_len_of_resolved: bool = True
    """`max_residues` counts resolved residues instead of the sequence."""
    modified_are_unknown: bool = True
    """Polymers of modified residues only are removed, as those of unknown residues are."""
    symmetry_required: bool = True
    """A link in an assembly is left out if the file does not say that one operator moves both
    ends."""
    bonded_atoms_clash: bool = True
    """Atoms joined by a link count as a clash."""


def refused_chains(
    atoms: AtomRows,
    residues: Integer[np.ndarray, " R"],
    resolved: Bool[np.ndarray, " R"],
    links: Integer[np.ndarray, "b 3"],
    rules: BoltzRules,
) -> dict[int, str]:
    """The reason of each chain that a filter refuses, by its row; each filter sees all chains.

    Args:
        residues: first row of each residue's atoms.
        resolved: residues that are in the file.
        links: rows of two linked atoms, and the type of the bond.
    """
    pairs = contacts(atoms.position, atoms.chain, rules.clash_distance)
    if not rules.bonded_atoms_clash:
        linked = {tuple(sorted(link)) for link in links[:, :2].tolist()}
        pairs = pairs[[tuple(pair) not in linked for pair in pairs.tolist()]]
    starts = run_starts(atoms.chain)
    number = segment_ids(starts, len(atoms))
    present = np.isfinite(atoms.position).all(axis=1)
    counts = np.bincount(number[present], minlength=len(starts))
    clashing = clashing_groups(contact_rows(pairs, number), counts, rules.clash_fraction)
    reasons = {}
    for row, (low, high) in enumerate(segment_bounds(starts, len(atoms))):
        chain = atoms.take(np.arange(low, high))
        reason = _refusal_reason(chain, resolved[number[residues] == row], rules)
        if row in clashing:
            reason = "clashes with another chain"
        if reason:
            reasons[row] = reason
    return reasons


def _refusal_reason(chain: AtomRows, resolved: Bool[np.ndarray, " R"], rules: BoltzRules) -> str:
    """The reason a filter refuses a chain by itself; '' if none does."""
    kind, names = int(chain.kind[0]), set(chain.res_name.tolist())
    if kind == LIGAND:
        return "" if names.isdisjoint(EXCLUDED_LIGANDS) else "an excluded ligand"
    num_resolved = int(resolved.sum())
    if num_resolved < rules.min_residues:
        return "a short polymer"
    if (num_resolved if rules.max_len_of_resolved else len(resolved)) > rules.max_residues:
        return "a long polymer"
    if rules.modified_are_unknown and kind == PROTEIN:
        names = {name if name in RESTYPES else "UNK" for name in names}
    if names == {_UNKNOWN[kind]}:
        return "all residues are unknown"
    if kind == PROTEIN:
        standard = np.isin(chain.res_name, RESTYPES)
        is_first = np.diff(chain.res_id, prepend=-1) > 0
        centre = chain.position[np.where(standard, chain.name == "CA", is_first)]
        step = np.linalg.norm(np.diff(centre, axis=0), axis=1)
        if (step > rules.max_step).any():
            return "a jump between neighbouring residues"
    return ""

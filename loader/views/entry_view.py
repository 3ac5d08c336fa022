"""One entry after a project's cleaning, in the project's order and with its numbers.

OpenFold3's, Boltz's and Protenix's samples are made from an `EntryView` alone. It is built from a
record and the project's ruleset, or from the project's own prepared tables. Plain numpy columns of
the whole entry, never changed once built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Int, Integer, Shaped
from evofeed.protein.entry_record import ChainType as ChainType
from evofeed.protein.entry_record import run_starts

NAME_CHARS: Final = 4
"""Characters of an atom's name in the features."""


IS_KIND: Final = {f"is_{kind.name.lower()}": kind for kind in ChainType}
"""Features of OpenFold3 and Protenix that are 1 for chains of one type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """A whole entry as one project reads it.

    C chains, R residues, A atoms, N tokens, B bonds, I interfaces; G components with a conformer
    each (a residue, or a ligand chain of several residues where the project treats it as one
    molecule); M distinct reference molecules with Q atoms and K stored conformers.
    Residues are sorted by chain, atoms by residue. Offsets have one element more than rows and
    begin with 0. Row numbers count from 0 in the whole entry.
    """

    entry: str
    """Name of the entry."""
    resolution: float
    """Ångström; NaN if unknown."""

    chain_name: Shaped[np.ndarray, " C"]
    """Text: the project's own name of the chain."""
    chain_type: Integer[np.ndarray, " C"]
    """`ChainType`, as the project reads it."""
    chain_entity: Integer[np.ndarray, " C"]
    """The project's number of the entity."""
    chain_sym: Integer[np.ndarray, " C"]
    """Number of the copy of the entity, from 0."""
    chain_valid: Bool[np.ndarray, " C"]
    """False: in the tables, but without tokens (Boltz)."""
    chain_residue: Integer[np.ndarray, " C1"]
    """Offsets into residues."""
    chain_alignment: Integer[np.ndarray, " C"]
    """Index in `alignments`; -1 for a chain without one."""
    alignments: tuple[str, ...]
    """Names of the distinct alignments of the entry."""

    residue_name: Shaped[np.ndarray, " R"]
    """Text: component code."""
    residue_index: Integer[np.ndarray, " R"]
    """The project's number of the residue in its chain."""
    residue_type: Integer[np.ndarray, " R"]
    """Code in the project's vocabulary of residues."""
    residue_present: Bool[np.ndarray, " R"]
    """True if any atom is resolved."""
    residue_component: Integer[np.ndarray, " R"]
    """Component it belongs to, ascending."""
    residue_atom: Integer[np.ndarray, " R1"]
    """Offsets into atoms."""

    atom_name: Integer[np.ndarray, "A 4"]
    """Characters of the name minus 32, 0 for a blank."""
    atom_element: Integer[np.ndarray, " A"]
    """Atomic number; 0 if unknown."""
    atom_charge: Integer[np.ndarray, " A"]
    """Formal charge, as in the features."""
    atom_position: Float[np.ndarray, "A 3"]
    """Ångström; zeros where absent."""
    atom_present: Bool[np.ndarray, " A"]
    """True if the project counts the atom as resolved."""
    atom_reference: Integer[np.ndarray, " A"]
    """Row of the atom among the Q atoms of reference molecules; -1 for none."""

    token_atom: Integer[np.ndarray, " N"]
    """First atom."""
    token_atoms: Integer[np.ndarray, " N"]
    """Number of atoms, which are contiguous."""
    token_residue: Integer[np.ndarray, " N"]
    """Residue that the token is, or is part of."""
    token_type: Integer[np.ndarray, " N"]
    """Code in the project's vocabulary of residues."""
    token_centre: Integer[np.ndarray, " N"]
    """Atom that represents the token in crops."""
    token_distogram: Integer[np.ndarray, " N"]
    """Atom that represents the token in the distogram; -1 where the model finds it."""
    token_atomized: Bool[np.ndarray, " N"]
    """True if the residue is split into atoms."""
    token_resolved: Bool[np.ndarray, " N"]
    """True if the project counts the token as resolved."""

    bond_atom: Integer[np.ndarray, "B 2"]
    """Atoms of every bond, in the order of the project's table."""
    bond_type: Integer[np.ndarray, " B"]
    """The project's code of the bond order; 0 for a link without one."""
    interface_chain: Integer[np.ndarray, "I 2"]
    """Chains in contact."""

    component_molecule: Integer[np.ndarray, " G"]
    """Reference molecule of every component."""
    molecule_name: tuple[str, ...]
    """Names of the reference molecules."""
    molecule_atom: Integer[np.ndarray, " M1"]
    """Offsets into reference atoms."""
    molecule_bond: Integer[np.ndarray, "E 2"]
    """Pairs of bonded reference atoms, molecule by molecule."""
    molecule_position: Float[np.ndarray, "K Q 3"]
    """Conformers, ångström; zeros where masked. K may be 1."""
    molecule_mask: Bool[np.ndarray, " Q"]
    """True if the atom has coordinates in the conformers."""
    molecule_orders: tuple[Integer[np.ndarray, "_ _"], ...]
    """Symmetries of every molecule as atom orders, `[P, a]`, the identity among them."""

    @property
    def num_chains(self) -> int:
        """Chains, valid or not (C)."""
        return len(self.chain_name)

    @property
    def num_residues(self) -> int:
        """Residues of all chains (R)."""
        return len(self.residue_name)

    @property
    def num_atoms(self) -> int:
        """Atoms, resolved or not (A)."""
        return len(self.atom_name)

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole entry (N)."""
        return len(self.token_atom)

    def residue_chain(self) -> Integer[np.ndarray, " R"]:
        """Chain of every residue."""
        return np.repeat(np.arange(self.num_chains, dtype=np.int32), np.diff(self.chain_residue))

    def token_chain(self) -> Integer[np.ndarray, " N"]:
        """Chain of every token."""
        chain: np.ndarray = self.residue_chain()[self.token_residue]
        return chain

    def atoms_of(self, tokens: Integer[np.ndarray, " n"]) -> Int[np.ndarray, " A"]:
        """Atoms of these tokens, token by token."""
        return joined_runs(self.token_atom[tokens], self.token_atoms[tokens])

    def component_atom(self) -> Integer[np.ndarray, " G1"]:
        """Offsets of components into atoms."""
        first = np.searchsorted(self.residue_component, np.arange(len(self.component_molecule)))
        return np.append(self.residue_atom[first], self.num_atoms).astype(np.int64)

    def orders_of(
        self, molecule: int, reference: Integer[np.ndarray, " a"]
    ) -> Integer[np.ndarray, "P a"]:
        """Atom orders of a molecule that permute only these atoms, as indices into `reference`."""
        rows = reference - self.molecule_atom[molecule]
        orders = self.molecule_orders[molecule]
        index = np.full(orders.shape[1], -1, np.int64)
        index[rows] = np.arange(len(rows))
        permuted = index[orders[:, rows]]
        closed: np.ndarray = permuted[(permuted >= 0).all(1)]
        return closed

    def token_position(self) -> Float[np.ndarray, "N 3"]:
        """Centre atoms, ångström."""
        position: np.ndarray = self.atom_position[self.token_centre]
        return position


OTHER_POLYMER: Final = len(ChainType)
"""`chain_polymer` of hybrids, D-peptides and other polymers without an alignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixView(EntryView):
    """A whole entry as Protenix reads it.

    `residue_type` and `token_type` are those of the canonical sequence, unknown for ligands; every
    polymer has an alignment, if only of its own sequence.
    """

    chain_asym: Integer[np.ndarray, " C"]
    """Number of the chain, ascending, with gaps for removed chains."""
    chain_polymer: Integer[np.ndarray, " C"]
    """`ChainType` of the entity's polymer type, LIGAND if it is not a polymer, `OTHER_POLYMER`
    for types without a `ChainType`."""
    residue_kind: Integer[np.ndarray, " R"]
    """`ChainType` of the residue's component; LIGAND in chains that are not polymers."""


def joined_runs(starts: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"]) -> np.ndarray:
    """`i64`: the ranges `start, start + 1, ...` of `counts` elements, concatenated."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: np.ndarray = np.arange(total) + np.repeat(starts - ends + counts, counts)
    return numbers


def numbers_within(counts: Integer[np.ndarray, " n"]) -> np.ndarray:
    """`i64`: the ranges `0, 1, ...` of `counts` elements, concatenated."""
    return joined_runs(np.zeros_like(counts), counts)


def counts_before(
    keys: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"] | None = None
) -> Integer[np.ndarray, " n"]:
    """Sum of the counts (1 each by default) of the earlier elements with the same key."""
    counts = np.ones(len(keys), np.int64) if counts is None else counts
    order = np.argsort(keys, kind="stable")
    sums = np.cumsum(counts[order]) - counts[order]
    starts = run_starts(keys[order])
    before = np.empty_like(counts)
    before[order] = sums - np.repeat(sums[starts], np.diff(np.append(starts, len(keys))))
    return before


def complete_groups(
    group: Integer[np.ndarray, " n"], chosen: Integer[np.ndarray, " c"]
) -> Integer[np.ndarray, " k"]:
    """The chosen elements whose group, of those of n elements, is chosen completely."""
    sizes = np.bincount(group)
    complete = sizes == np.bincount(group[chosen], minlength=len(sizes))
    members: np.ndarray = chosen[complete[group[chosen]]]
    return members


def connected_roots(
    rows: Integer[np.ndarray, " n"], pairs: Integer[np.ndarray, "b 2"], size: int
) -> Integer[np.ndarray, " n"]:
    """The smallest row of each row's connected component; `pairs` are edges, rows below `size`."""
    root = np.arange(size)
    for a, b in pairs.tolist():
        low, high = sorted((root[a], root[b]))
        root[root == high] = low
    roots: np.ndarray = root[rows]
    return roots

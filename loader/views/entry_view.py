"""One entry as one project sees it: what survived its cleaning, in its order and its numbers.

`EntryView` is what the views of OpenFold3, Boltz and Protenix start from. It is made from a record
and the project's ruleset, or from the project's own prepared tables; a view reads nothing else of
the structure. Plain numpy columns, whole entry, never changed after they were made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Int, Integer, Shaped
from evofeed.protein.entry_record import ChainType as ChainType
from evofeed.protein.entry_record import run_starts

NAME_CHARS: Final = 4
"""Characters of an atom's name that a model is fed."""


IS_KIND: Final = {f"is_{kind.name.lower()}": kind for kind in ChainType}
"""Features of OpenFold3 and Protenix that say what a chain is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryView:
    """A whole entry in the eyes of one project.

    C chains, R residues, A atoms, N tokens, B bonds, I interfaces; G components, which get a
    conformer each (a residue, or a ligand chain of several residues where the project treats it
    as one molecule); M distinct reference molecules with Q atoms and K stored conformers.
    Residues stand in the order of their chains, atoms in the order of their residues. Offsets
    have one element more than rows and begin with 0. Row numbers count from 0 in the whole entry.
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
    """Which copy of its entity, from 0."""
    chain_valid: Bool[np.ndarray, " C"]
    """False: in the tables, but without tokens (Boltz)."""
    chain_residue: Integer[np.ndarray, " C1"]
    """Offsets into residues."""
    chain_alignment: Integer[np.ndarray, " C"]
    """Number in `alignments`; -1 for a chain without one."""
    alignments: tuple[str, ...]
    """Names of the distinct alignments of the entry."""

    residue_name: Shaped[np.ndarray, " R"]
    """Text: component code."""
    residue_index: Integer[np.ndarray, " R"]
    """The project's number of the residue in its chain."""
    residue_type: Integer[np.ndarray, " R"]
    """Code in the project's vocabulary of residues."""
    residue_present: Bool[np.ndarray, " R"]
    """Whether any atom of it was seen."""
    residue_component: Integer[np.ndarray, " R"]
    """Component it belongs to, ascending."""
    residue_atom: Integer[np.ndarray, " R1"]
    """Offsets into atoms."""

    atom_name: Integer[np.ndarray, "A 4"]
    """Characters of the name minus 32, 0 for a blank."""
    atom_element: Integer[np.ndarray, " A"]
    """Atomic number; 0 if unknown."""
    atom_charge: Integer[np.ndarray, " A"]
    """Formal charge as the model is fed it."""
    atom_position: Float[np.ndarray, "A 3"]
    """Ångström; zeros where absent."""
    atom_present: Bool[np.ndarray, " A"]
    """Whether the project takes the atom as seen."""
    atom_reference: Integer[np.ndarray, " A"]
    """Row of the atom among the Q atoms of reference molecules; -1 for none."""

    token_atom: Integer[np.ndarray, " N"]
    """First atom."""
    token_atoms: Integer[np.ndarray, " N"]
    """How many atoms, one after the other."""
    token_residue: Integer[np.ndarray, " N"]
    """Residue it is, or is part of."""
    token_type: Integer[np.ndarray, " N"]
    """Code in the project's vocabulary of residues."""
    token_centre: Integer[np.ndarray, " N"]
    """Atom that stands for the token in crops."""
    token_distogram: Integer[np.ndarray, " N"]
    """Atom that stands for the token in the distogram; -1 where the model finds it."""
    token_atomized: Bool[np.ndarray, " N"]
    """Whether the residue is split into atoms."""
    token_resolved: Bool[np.ndarray, " N"]
    """Whether the project takes the token as resolved."""

    bond_atom: Integer[np.ndarray, "B 2"]
    """Atoms of every bond the project has, in the order of its table."""
    bond_type: Integer[np.ndarray, " B"]
    """The project's code of the bond's order; 0 for a link without one."""
    interface_chain: Integer[np.ndarray, "I 2"]
    """Chains in contact."""

    component_molecule: Integer[np.ndarray, " G"]
    """Reference molecule of every component."""
    molecule_name: tuple[str, ...]
    """Names of the reference molecules."""
    molecule_atom: Integer[np.ndarray, " M1"]
    """Offsets into reference atoms."""
    molecule_bond: Integer[np.ndarray, "E 2"]
    """Reference atoms that are bonded, molecule by molecule."""
    molecule_position: Float[np.ndarray, "K Q 3"]
    """Conformers, ångström; zeros where masked. K may be 1."""
    molecule_mask: Bool[np.ndarray, " Q"]
    """Whether the atom has coordinates in the conformers."""
    molecule_orders: tuple[Integer[np.ndarray, "_ _"], ...]
    """Atom orders of every molecule that leave it the same, `[P, a]`, the identity among them."""

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
        """Atoms, seen or not (A)."""
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
        """Atoms of these tokens, one token after the other."""
        return joined_runs(self.token_atom[tokens], self.token_atoms[tokens])

    def component_atom(self) -> Integer[np.ndarray, " G1"]:
        """Offsets of components into atoms."""
        first = np.searchsorted(self.residue_component, np.arange(len(self.component_molecule)))
        return np.append(self.residue_atom[first], self.num_atoms).astype(np.int64)

    def orders_of(
        self, molecule: int, reference: Integer[np.ndarray, " a"]
    ) -> Integer[np.ndarray, "P a"]:
        """Orders of these atoms of a molecule that ask for no others, as places among them."""
        own = reference - self.molecule_atom[molecule]
        orders = self.molecule_orders[molecule]
        place = np.full(orders.shape[1], -1, np.int64)
        place[own] = np.arange(len(own))
        moved = place[orders[:, own]]
        kept: np.ndarray = moved[(moved >= 0).all(1)]
        return kept

    def token_position(self) -> Float[np.ndarray, "N 3"]:
        """Centre atoms, ångström."""
        position: np.ndarray = self.atom_position[self.token_centre]
        return position


OTHER_POLYMER: Final = len(ChainType)
"""`chain_polymer` of hybrids, D-peptides and other polymers without an alignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtenixView(EntryView):
    """A whole entry in Protenix's eyes.

    `residue_type` and `token_type` are those of the canonical sequence, unknown for ligands; every
    polymer has an alignment, of its sequence alone where there is no other.
    """

    chain_asym: Integer[np.ndarray, " C"]
    """Number of the chain, ascending; chains left out leave holes."""
    chain_polymer: Integer[np.ndarray, " C"]
    """`ChainType` that the entity's polymer type names, LIGAND for no polymer, else
    `OTHER_POLYMER`."""
    residue_kind: Integer[np.ndarray, " R"]
    """`ChainType` of the residue's own component, LIGAND for all of what is no polymer."""


def joined_runs(starts: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"]) -> np.ndarray:
    """`i64`: `start, start + 1, ...` of every run in turn."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    numbers: np.ndarray = np.arange(total) + np.repeat(starts - ends + counts, counts)
    return numbers


def numbers_within(counts: Integer[np.ndarray, " n"]) -> np.ndarray:
    """`i64`: 0, 1, ... up to each count in turn."""
    return joined_runs(np.zeros_like(counts), counts)


def counts_before(
    keys: Integer[np.ndarray, " n"], counts: Integer[np.ndarray, " n"] | None = None
) -> Integer[np.ndarray, " n"]:
    """Sum of the counts, 1 each if none are given, that stand before each one of equal key."""
    counts = np.ones(len(keys), np.int64) if counts is None else counts
    order = np.argsort(keys, kind="stable")
    sums = np.cumsum(counts[order]) - counts[order]
    starts = run_starts(keys[order])
    out = np.empty_like(counts)
    out[order] = sums - np.repeat(sums[starts], np.diff(np.append(starts, len(keys))))
    return out


def only_whole(
    group: Integer[np.ndarray, " n"], chosen: Integer[np.ndarray, " c"]
) -> Integer[np.ndarray, " k"]:
    """Those chosen of n whose group is chosen as a whole."""
    total = np.bincount(group)
    whole = total == np.bincount(group[chosen], minlength=len(total))
    kept: np.ndarray = chosen[whole[group[chosen]]]
    return kept


def first_of_joined(
    rows: Integer[np.ndarray, " n"], pairs: Integer[np.ndarray, "b 2"], size: int
) -> Integer[np.ndarray, " n"]:
    """Of each of these rows, all below `size`, the first one that pairs join it with."""
    root = np.arange(size)
    for one, two in pairs.tolist():
        low, high = sorted((root[one], root[two]))
        root[root == high] = low
    found: np.ndarray = root[rows]
    return found

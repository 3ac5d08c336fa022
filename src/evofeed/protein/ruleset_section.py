"""A record as cleaned by one project: its chains, residues, atoms and bonds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.entry_record import Dropped


class EntryRefused(InputError):
    """A project's rules have no answer for this entry: its own code fails or skips it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesetSection:
    """An assembly in the eyes of one project: C chains, R residues, A atoms, B bonds.

    Residues stand in the order of their chains, atoms in the order of their residues; offsets have
    one element more than rows.
    """

    project: str
    chain_name: Shaped[np.ndarray, " C"]
    """Text: the project's name of the chain."""
    chain_asym: Integer[np.ndarray, " C"]
    """Chain of the record."""
    chain_operator: Integer[np.ndarray, " C"]
    """Operator of the record that places it; -1 for none."""
    chain_copy: Integer[np.ndarray, " C"]
    """Which copy of its chain, or of its entity where the project counts so, from 0."""
    chain_number: Integer[np.ndarray, " C"]
    """Number among all chains of the assembly, ascending; chains left out leave holes."""
    chain_type: Integer[np.ndarray, " C"]
    """0 protein, 1 DNA, 2 RNA, 3 ligand."""
    chain_valid: Bool[np.ndarray, " C"]
    """False: in the tables, but never tokenized."""
    chain_entity: Integer[np.ndarray, " C"]
    """Number of the entity, as the project counts."""
    chain_residue: Integer[np.ndarray, " C+1"]

    residue_name: Shaped[np.ndarray, " R"]
    """Text: component code."""
    residue_index: Integer[np.ndarray, " R"]
    """Number of the residue, as the project counts."""
    residue_insertion: Shaped[np.ndarray, " R"]
    residue_hetero: Bool[np.ndarray, " R"]
    residue_atom: Integer[np.ndarray, " R+1"]

    atom_name: Shaped[np.ndarray, " A"]
    """Text."""
    atom_element: Shaped[np.ndarray, " A"]
    """Text, upper case."""
    atom_charge: Integer[np.ndarray, " A"]
    atom_row: Integer[np.ndarray, " A"]
    """Atom of the record whose coordinates it has; -1 if nobody saw it."""

    bond_atom: Integer[np.ndarray, "B 2"]
    bond_type: Integer[np.ndarray, " B"]
    """The project's code of the bond's order."""
    interface: Integer[np.ndarray, "I 2"]
    """Chains in contact, the project's order."""
    dropped: tuple[Dropped, ...]
    """What the project leaves out, with its reason."""

    def atom_chain(self) -> Integer[np.ndarray, " A"]:
        """Chain of every atom."""
        chain = np.repeat(np.arange(len(self.chain_name)), np.diff(self.chain_residue))
        return np.repeat(chain, np.diff(self.residue_atom))

    def atom_residue(self) -> Integer[np.ndarray, " A"]:
        """Residue of every atom."""
        return np.repeat(np.arange(len(self.residue_name)), np.diff(self.residue_atom))


def copies_of(entities: Integer[np.ndarray, " C"]) -> Integer[np.ndarray, " C"]:
    """How many chains of the same entity stand before each, `i32`."""
    earlier = np.tril(entities[:, None] == entities[None], -1)
    counts: np.ndarray = earlier.sum(axis=1, dtype=np.int32)
    return counts


def placed(
    position: Float[np.ndarray, "A 3"],
    operator: Integer[np.ndarray, " A"],
    operators: Float[np.ndarray, "K 3 4"],
    *,
    single: bool,
) -> Float[np.ndarray, "A 3"]:
    """Coordinates moved by the operator of every atom, float32, ångström.

    Args:
        position: float64.
        operator: row of `operators`; -1 leaves the atom where it is.
        single: what is moved is float32, biotite's way; False is float64, gemmi's.
    """
    start = position.astype(np.float32 if single else np.float64)
    order = np.argsort(operator, kind="stable")  # atoms of an operator stand together
    bounds = np.searchsorted(operator[order], np.arange(len(operators) + 1)).tolist()
    moved = start.astype(np.float64)[order]
    for (rotation, shift), low, high in zip(
        ((one[:, :3], one[:, 3]) for one in operators), bounds[:-1], bounds[1:], strict=True
    ):
        if low < high and not (np.array_equal(rotation, np.eye(3)) and not shift.any()):
            moved[low:high] = moved[low:high] @ rotation.T + shift
    out = np.empty(position.shape, np.float32)
    out[order] = moved
    return out

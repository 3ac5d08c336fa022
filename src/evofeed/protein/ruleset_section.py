"""A record as cleaned by one project: its chains, residues, atoms and bonds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.errors import InputError
from evofeed.base.shapes import Bool, Float, Integer, Shaped
from evofeed.protein.entry_record import Dropped


class EntryRefused(InputError):
    """An entry that a project's rules do not accept: the project's code fails or skips it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesetSection:
    """An assembly as one project cleans it: C chains, R residues, A atoms, B bonds.

    Residues are in the order of their chains, atoms in the order of their residues; offsets have
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
    """Number of the copy of its chain, or of its entity, as the project counts, from 0."""
    chain_number: Integer[np.ndarray, " C"]
    """Number among all chains of the assembly, ascending; those of chains left out are missing."""
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
    """Atom of the record whose coordinates it has; -1 if it is not resolved."""

    bond_atom: Integer[np.ndarray, "B 2"]
    bond_type: Integer[np.ndarray, " B"]
    """The project's code of the bond's order."""
    interface: Integer[np.ndarray, "I 2"]
    """Chains in contact, the project's order."""
    dropped: tuple[Dropped, ...]
    """Parts that the project leaves out, with its reasons."""

    def atom_chain(self) -> Integer[np.ndarray, " A"]:
        """Chain of every atom."""
        chain = np.repeat(np.arange(len(self.chain_name)), np.diff(self.chain_residue))
        return np.repeat(chain, np.diff(self.residue_atom))

    def atom_residue(self) -> Integer[np.ndarray, " A"]:
        """Residue of every atom."""
        return np.repeat(np.arange(len(self.residue_name)), np.diff(self.residue_atom))


def copies_of(entities: Integer[np.ndarray, " C"]) -> Integer[np.ndarray, " C"]:
    """Number of earlier chains of the same entity, for each chain, `i32`."""
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
        operator: row of `operators`; -1 does not move the atom.
        single: moves float32 coordinates, as biotite does; False moves float64, as gemmi does.
    """
    start = position.astype(np.float32 if single else np.float64)
    order = np.argsort(operator, kind="stable")  # groups the atoms of each operator
    bounds = np.searchsorted(operator[order], np.arange(len(operators) + 1)).tolist()
    moved = start.astype(np.float64)[order]
    for matrix, low, high in zip(operators, bounds[:-1], bounds[1:], strict=True):
        rotation, shift = matrix[:, :3], matrix[:, 3]
        if low < high and not (np.array_equal(rotation, np.eye(3)) and not shift.any()):
            moved[low:high] = moved[low:high] @ rotation.T + shift
    out = np.empty(position.shape, np.float32)
    out[order] = moved
    return out

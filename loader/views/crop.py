"""Tokens of an entry as input of a crop, and the tokens and atoms of a crop."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.entry_record import run_starts
from evofeed.protein.interfaces import near_other_chains


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of an entry in the order of the crop; those of a residue are contiguous."""

    row: Integer[np.ndarray, " N"]
    """Row of the view's tokens."""
    chain: Integer[np.ndarray, " N"]
    residue: Integer[np.ndarray, " N"]
    atoms: Integer[np.ndarray, " N"]
    position: Float[np.ndarray, "N 3"]
    """Centre atoms, ångström, float64."""
    resolved: Bool[np.ndarray, " N"]

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of(cls, view: EntryView, order: Integer[np.ndarray, " N"] | None = None) -> Tokens:
        """The tokens of a view, in this order if one is given."""
        row = np.arange(view.num_tokens) if order is None else order
        return cls(
            row,
            view.token_chain()[row],
            view.token_residue[row],
            view.token_atoms[row],
            view.token_position()[row].astype(np.float64),
            view.token_resolved[row],
        )

    def near(
        self, tokens: Integer[np.ndarray, " p"], others: Integer[np.ndarray, " o"], distance: float
    ) -> Integer[np.ndarray, " q"]:
        """The tokens within `distance` of one of the others in a different chain."""
        xyz, chain = self.position, self.chain
        near = near_other_chains(xyz[tokens], chain[tokens], xyz[others], chain[others], distance)
        near_tokens: np.ndarray = tokens[near]
        return near_tokens

    def distances(self, centre: int, tokens: Integer[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Distance of each of these tokens from the centre, ångström."""
        x, y, z = (self.position[tokens] - self.position[centre]).T
        length: np.ndarray = np.sqrt(x * x + y * y + z * z)
        return length


@dataclass(frozen=True, slots=True)
class Crop:
    """The T tokens and A atoms of a sample, as rows of the entry except where "in the crop"."""

    token: Integer[np.ndarray, " T"]
    residue: Integer[np.ndarray, " T"]
    chain: Integer[np.ndarray, " T"]
    start: Integer[np.ndarray, " T1"]
    """Offsets of tokens into the atoms of the crop."""
    centre: Integer[np.ndarray, " T"]
    """Index in the crop of the atom that represents the token in crops."""
    distogram: Integer[np.ndarray, " T"]
    """Index in the crop of the atom of the distogram, where the view has one."""
    atom: Integer[np.ndarray, " A"]
    owner: Integer[np.ndarray, " A"]
    """Index in the crop of every atom's token."""
    component: Integer[np.ndarray, " g"]
    """Component of every run of tokens of one component."""
    run: Integer[np.ndarray, " A"]
    """Number of every atom's run."""

    def __len__(self) -> int:
        return len(self.token)

    @property
    def atoms(self) -> Integer[np.ndarray, " T"]:
        """Number of atoms of every token."""
        return np.diff(self.start)

    @classmethod
    def of(cls, view: EntryView, token: Integer[np.ndarray, " T"]) -> Crop:
        """The crop with these tokens."""
        residue = view.token_residue[token].astype(np.int64)
        counts = view.token_atoms[token].astype(np.int64)
        start = np.append(0, np.cumsum(counts))
        shift = start[:-1] - view.token_atom[token]
        owner = np.repeat(np.arange(len(token)), counts)
        component = view.residue_component[residue]
        starts = run_starts(component)
        run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(token))))
        return cls(
            token,
            residue,
            view.residue_chain()[residue],
            start,
            shift + view.token_centre[token],
            shift + view.token_distogram[token],
            view.atoms_of(token),
            owner,
            component[starts],
            run[owner],
        )

    def bonds(self, view: EntryView) -> Integer[np.ndarray, "b 2"]:
        """Indices of the two atoms of every bond in the crop, in the order of the view's table."""
        index = np.full(view.num_atoms, -1)
        index[self.atom] = np.arange(len(self.atom))
        ends = index[view.bond_atom]
        bonds: np.ndarray = ends[(ends >= 0).all(1)]
        return bonds


def centred(
    position: Float[np.ndarray, "A 3"],
    run: Integer[np.ndarray, " A"],
    mask: Bool[np.ndarray, " A"] | None = None,
) -> Float[np.ndarray, "A 3"]:
    """Positions relative to the mean of their run's atoms in the mask.

    Positions outside the mask must be zeros.
    """
    starts = np.flatnonzero(np.diff(run, prepend=-1))
    counts = np.maximum(np.bincount(run, mask), 1)
    relative: np.ndarray = position - (np.add.reduceat(position, starts) / counts[:, None])[run]
    return relative

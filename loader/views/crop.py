"""Tokens of an entry as a crop looks at them, and tokens and atoms of the crop that was made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.views.entry_view import EntryView
from evofeed.protein.entry_record import run_starts
from evofeed.protein.interfaces import near_other_chains


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of an entry in the order a crop looks at them; residues stand together."""

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
        """The tokens of a view, in another order if one is given."""
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
        self, own: Integer[np.ndarray, " p"], others: Integer[np.ndarray, " o"], distance: float
    ) -> Integer[np.ndarray, " q"]:
        """Those of these tokens that are near one of the others that is of another chain."""
        at, chain = self.position, self.chain
        near = near_other_chains(at[own], chain[own], at[others], chain[others], distance)
        found: np.ndarray = own[near]
        return found

    def distances(self, centre: int, tokens: Integer[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Ångström from one token to these."""
        x, y, z = (self.position[tokens] - self.position[centre]).T
        length: np.ndarray = np.sqrt(x * x + y * y + z * z)
        return length


@dataclass(frozen=True, slots=True)
class Crop:
    """Tokens and atoms of a sample: T tokens, A atoms; rows are the entry's, places the crop's."""

    token: Integer[np.ndarray, " T"]
    residue: Integer[np.ndarray, " T"]
    chain: Integer[np.ndarray, " T"]
    start: Integer[np.ndarray, " T1"]
    """Offsets of the tokens' atoms."""
    centre: Integer[np.ndarray, " T"]
    """Place of the atom that stands for the token in crops."""
    distogram: Integer[np.ndarray, " T"]
    """Place of the atom that stands for the token in the distogram, where the view has one."""
    atom: Integer[np.ndarray, " A"]
    owner: Integer[np.ndarray, " A"]
    """Token of every atom."""
    component: Integer[np.ndarray, " g"]
    """Component of every run of tokens that are of one."""
    run: Integer[np.ndarray, " A"]
    """Run of every atom."""

    def __len__(self) -> int:
        return len(self.token)

    @property
    def atoms(self) -> Integer[np.ndarray, " T"]:
        """Atoms of every token."""
        return np.diff(self.start)

    @classmethod
    def of(cls, view: EntryView, token: Integer[np.ndarray, " T"]) -> Crop:
        """The crop that has these tokens."""
        residue = view.token_residue[token].astype(np.int64)
        counts = view.token_atoms[token].astype(np.int64)
        start = np.append(0, np.cumsum(counts))
        moved = start[:-1] - view.token_atom[token]
        owner = np.repeat(np.arange(len(token)), counts)
        component = view.residue_component[residue]
        starts = run_starts(component)
        run = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(token))))
        return cls(
            token,
            residue,
            view.residue_chain()[residue],
            start,
            moved + view.token_centre[token],
            moved + view.token_distogram[token],
            view.atoms_of(token),
            owner,
            component[starts],
            run[owner],
        )

    def bonds(self, view: EntryView) -> Integer[np.ndarray, "b 2"]:
        """Places of both atoms of every bond, in the order of the view's table."""
        place = np.full(view.num_atoms, -1)
        place[self.atom] = np.arange(len(self.atom))
        ends = place[view.bond_atom]
        both: np.ndarray = ends[(ends >= 0).all(1)]
        return both


def centred(
    position: Float[np.ndarray, "A 3"],
    run: Integer[np.ndarray, " A"],
    mask: Bool[np.ndarray, " A"] | None = None,
) -> Float[np.ndarray, "A 3"]:
    """Positions about the middle of their run's atoms, those of the mask alone counted.

    Positions that the mask leaves out must be zeros.
    """
    starts = np.flatnonzero(np.diff(run, prepend=-1))
    counts = np.maximum(np.bincount(run, mask), 1)
    moved: np.ndarray = position - (np.add.reduceat(position, starts) / counts[:, None])[run]
    return moved

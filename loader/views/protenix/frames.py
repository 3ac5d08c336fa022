"""Which three atoms make a token's frame: a residue's backbone, or an atom and the nearest two."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.views.entry_view import joined_runs, run_starts
from evofeed.loader.views.protenix.vocabulary import is_named

_LEAST_ANGLE: Final = 25.0
"""Degrees between three atoms and a line."""


class Frames(NamedTuple):
    """Atoms of every token's frame, in the crop, -1 for none, and whether it has one."""

    atoms: Integer[np.ndarray, "T 3"]
    valid: Bool[np.ndarray, " T"]


def token_frames(
    starts: Integer[np.ndarray, " T1"],
    centre: Integer[np.ndarray, " T"],
    backbone: Bool[np.ndarray, " T"],
    protein: Bool[np.ndarray, " T"],
    names: Integer[np.ndarray, "A 4"],
    uid: Integer[np.ndarray, " A"],
    position: Float[np.ndarray, "A 3"],
    mask: Bool[np.ndarray, " A"],
) -> Frames:
    """Frames of a crop's tokens, T tokens of A atoms.

    Args:
        starts: offsets of the tokens' atoms.
        centre: centre atom of every token.
        backbone: tokens that are a standard residue.
        protein: tokens whose residue is an amino acid.
        names: names of atoms.
        uid: residue of every atom; one residue's atoms stand together.
        position: moved conformers, ångström, float32.
        mask: atoms with a conformer.
    """
    atoms = np.full([len(centre), 3], -1, np.int64)
    valid = np.zeros(len(centre), bool)
    owner = np.repeat(np.arange(len(centre)), np.diff(starts))
    for kind, wanted in ((True, ("N", "CA", "C")), (False, ("C1'", "C3'", "C4'"))):
        own = backbone & (protein == kind)
        found = np.full([len(centre), 3], -1, np.int64)
        for column, name in enumerate(wanted):
            there = np.flatnonzero(is_named(names, name) & own[owner])[::-1]
            found[owner[there], column] = there
        whole = own & (found >= 0).all(1)
        atoms[whole], valid[whole] = found[whole], True
    rest = np.flatnonzero(~backbone)
    if len(rest):
        atoms[rest], valid[rest] = _nearest(centre[rest], uid, position, mask)
    return Frames(atoms, valid)


def _nearest(
    centre: np.ndarray, uid: np.ndarray, position: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The two atoms of the residue nearest to each of these, around it."""
    first = np.searchsorted(run_starts(uid), centre, side="right") - 1
    bounds = np.append(run_starts(uid), len(uid))
    low, count = bounds[first], np.diff(bounds)[first]
    other = joined_runs(low, count)
    owner = np.repeat(np.arange(len(centre)), count)
    step = position[other].astype(np.float64) - position[centre[owner]].astype(np.float64)
    square = (step * step).sum(1)
    order = np.lexsort([square, owner])
    begin = np.cumsum(count) - count
    atoms = np.full([len(centre), 3], -1, np.int64)
    atoms[:, 1] = centre
    enough = count >= 3
    for column, place in ((0, 1), (2, 2)):
        atoms[enough, column] = other[order[begin[enough] + place]]
    valid = enough.copy()
    rows = atoms[enough]
    valid[enough] = mask[rows].all(1) & ~_straight(*(position[rows[:, k]] for k in range(3)))
    return atoms, valid


def _straight(one: np.ndarray, two: np.ndarray, three: np.ndarray) -> np.ndarray:
    """Whether three atoms are within 25 degrees of a line, or two of them at one point."""
    before, after = two - one, three - two
    lengths = np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)
    cosine = (before * after).sum(1) / (lengths[0] * lengths[1] + np.float32(1e-4))
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    same = np.minimum(*lengths) <= 1e-8
    straight: np.ndarray = same | (angle <= _LEAST_ANGLE) | (angle >= 180 - _LEAST_ANGLE)
    return straight

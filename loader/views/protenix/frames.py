"""Which three atoms make a token's frame: a residue's backbone, or an atom and the nearest two."""

from __future__ import annotations

from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.views.columns import residue_codes
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, ProtenixView, joined_runs
from evofeed.loader.views.protenix.vocabulary import is_named
from evofeed.protein.entry_record import run_starts

_LEAST_ANGLE: Final = 25.0
"""Degrees between three atoms and a line."""


def token_frames(
    view: ProtenixView,
    crop: Crop,
    position: Float[np.ndarray, "A 3"],
    mask: Bool[np.ndarray, " A"],
) -> tuple[Integer[np.ndarray, "T 3"], Bool[np.ndarray, " T"]]:
    """Atoms of every token's frame, in the crop, -1 for none, and whether it has one.

    `position` are the moved conformers, ångström, float32; `mask` atoms that have one.
    """
    kind = view.residue_kind[crop.residue]
    standard = residue_codes(view.residue_name[crop.residue]) >= 0
    backbone = standard & (kind != ChainType.LIGAND) & (crop.atoms > 1)
    names = view.atom_name[crop.atom]
    atoms = np.full([len(crop), 3], -1, np.int64)
    for own, wanted in (
        (backbone & (kind == ChainType.PROTEIN), ("N", "CA", "C")),
        (backbone & (kind != ChainType.PROTEIN), ("C1'", "C3'", "C4'")),
    ):
        for column, name in enumerate(wanted):
            there = np.flatnonzero(is_named(names, name) & own[crop.owner])[::-1]
            atoms[crop.owner[there], column] = there
    valid = np.asarray((atoms >= 0).all(1))
    atoms[~valid] = -1
    rest = np.flatnonzero(~backbone)
    if len(rest):
        atoms[rest], valid[rest] = _nearest(crop.centre[rest], crop.run, position, mask)
    return atoms, valid


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

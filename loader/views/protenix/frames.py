"""The three atoms of a token's frame: a residue's backbone, or an atom and the nearest two."""

from __future__ import annotations

from typing import Final

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.views.columns import residue_codes
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, ProtenixView, joined_runs
from evofeed.loader.views.protenix.vocabulary import is_named
from evofeed.protein.entry_record import run_starts

_MIN_ANGLE: Final = 25.0
"""Degrees by which the three atoms of a frame must deviate from a line."""


def token_frames(
    view: ProtenixView, crop: Crop, position: Float[np.ndarray, "A 3"], mask: Bool[np.ndarray, " A"]
) -> tuple[Integer[np.ndarray, "T 3"], Bool[np.ndarray, " T"]]:
    """Frame atoms of every token, as indices in the crop (-1 for none), and a mask of valid frames.

    `position` are the augmented conformers, ångström, float32; `mask` are atoms with a position.
    """
    kind = view.residue_kind[crop.residue]
    standard = residue_codes(view.residue_name[crop.residue]) >= 0
    backbone = standard & (kind != ChainType.LIGAND) & (crop.atoms > 1)
    names = view.atom_name[crop.atom]
    atoms = np.full([len(crop), 3], -1, np.int64)
    for tokens, backbone_names in (
        (backbone & (kind == ChainType.PROTEIN), ("N", "CA", "C")),
        (backbone & (kind != ChainType.PROTEIN), ("C1'", "C3'", "C4'")),
    ):
        for column, name in enumerate(backbone_names):
            matches = np.flatnonzero(is_named(names, name) & tokens[crop.owner])[::-1]
            atoms[crop.owner[matches], column] = matches
    valid = np.asarray((atoms >= 0).all(1))
    atoms[~valid] = -1
    rest = np.flatnonzero(~backbone)
    if len(rest):
        atoms[rest], valid[rest] = _nearest(crop.centre[rest], crop.run, position, mask)
    return atoms, valid


def _nearest(
    centre: np.ndarray, uid: np.ndarray, position: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Frames of centre atoms and the two nearest atoms of their residue, and which are valid."""
    first = np.searchsorted(run_starts(uid), centre, side="right") - 1
    bounds = np.append(run_starts(uid), len(uid))
    low, count = bounds[first], np.diff(bounds)[first]
    neighbor = joined_runs(low, count)
    owner = np.repeat(np.arange(len(centre)), count)
    step = position[neighbor].astype(np.float64) - position[centre[owner]].astype(np.float64)
    squared = (step * step).sum(1)
    order = np.lexsort([squared, owner])
    starts = np.cumsum(count) - count
    atoms = np.full([len(centre), 3], -1, np.int64)
    atoms[:, 1] = centre
    has_three = count >= 3
    for column, neighbor_rank in ((0, 1), (2, 2)):
        atoms[has_three, column] = neighbor[order[starts[has_three] + neighbor_rank]]
    valid = has_three.copy()
    rows = atoms[has_three]
    valid[has_three] = mask[rows].all(1) & ~_collinear(*(position[rows[:, k]] for k in range(3)))
    return atoms, valid


def _collinear(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """True where three atoms are within 25 degrees of a line, or two of them coincide."""
    before, after = second - first, third - second
    lengths = np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)
    cosine = (before * after).sum(1) / (lengths[0] * lengths[1] + np.float32(1e-4))
    angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
    coincide = np.minimum(*lengths) <= 1e-8
    collinear: np.ndarray = coincide | (angle <= _MIN_ANGLE) | (angle >= 180 - _MIN_ANGLE)
    return collinear

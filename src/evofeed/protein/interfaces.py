"""Residues of a complex that are near another chain."""

from __future__ import annotations

from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int

UNIT: Final = 1000
"""Distances are compared in integer thousandths of an ångström, equal on every machine."""


def interface_residues(
    positions: Float[np.ndarray, "L 37 3"],
    mask: np.ndarray,
    asym_id: np.ndarray,
    threshold: float = 10.0,
    *,
    same_atom: bool = False,
) -> Int[np.ndarray, " I"]:
    """Residues with an atom nearer than `threshold`, in ångström, to an atom of another chain.

    With `same_atom` only atoms of one name are compared: N with N, CA with CA.
    """
    fixed = np.rint(positions.astype(np.float64) * UNIT).astype(np.int64)
    present = mask > 0
    near = _near_others(
        fixed,
        present,
        np.asarray(asym_id, np.int64),
        *_spheres(fixed, present),
        threshold * UNIT,
        same_atom,
    )
    return np.flatnonzero(near)


def _spheres(fixed: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A sphere around the atoms of each residue: centre and radius, in thousandths."""
    count = np.maximum(present.sum(-1), 1)
    centre = np.where(present[..., None], fixed, 0).sum(1) / count[:, None]
    offset = np.where(present[..., None], fixed - centre[:, None], 0.0)
    return centre, np.sqrt((offset**2).sum(-1).max(-1)) + 1.0


def near_other_chains(
    points: Float[np.ndarray, "P 3"],
    chain: np.ndarray,
    targets: Float[np.ndarray, "T 3"],
    target_chain: np.ndarray,
    distance: float,
) -> np.ndarray:
    """Mask of points within `distance`, in ångström, of a target of another chain, `bool[P]`.

    Compared in double precision; `distance` is included.
    """
    near: np.ndarray = _near_targets(
        np.ascontiguousarray(points, np.float64),
        np.asarray(chain, np.int64),
        np.ascontiguousarray(targets, np.float64),
        np.asarray(target_chain, np.int64),
        float(distance) ** 2,
    )
    return near


@njit(cache=True, nogil=True)
@no_type_check
def _near_targets(points: Any, chain: Any, targets: Any, target_chain: Any, limit: Any) -> Any:
    """Mask of points that have a target of another chain at a squared distance up to `limit`."""
    near = np.zeros(len(points), np.bool_)
    for i in range(len(points)):
        for j in range(len(targets)):
            if chain[i] == target_chain[j]:
                continue
            square = 0.0
            for x in range(3):
                step = points[i, x] - targets[j, x]
                square += step * step
            if square <= limit:
                near[i] = True
                break
    return near


@njit(cache=True, nogil=True)
@no_type_check
def _near_others(
    fixed: Any, present: Any, asym_id: Any, centre: Any, radius: Any, threshold: Any, same_atom: Any
) -> Any:
    """Mask of residues with an atom within `threshold` of one of another chain, `bool[L]`."""
    count = len(fixed)
    near = np.zeros(count, np.bool_)
    limit = threshold * threshold
    for i in range(count):
        for j in range(i + 1, count):
            if asym_id[i] == asym_id[j] or (near[i] and near[j]):
                continue
            reach = threshold + radius[i] + radius[j]
            square = 0.0
            for x in range(3):
                step = centre[i, x] - centre[j, x]
                square += step * step
            if square >= reach * reach:
                continue
            if _in_contact(fixed[i], present[i], fixed[j], present[j], limit, same_atom):
                near[i] = True
                near[j] = True
    return near


@njit(cache=True, nogil=True)
@no_type_check
def _in_contact(
    first: Any, first_mask: Any, second: Any, second_mask: Any, limit: Any, same_atom: Any
) -> Any:
    """True if two residues have atoms at a squared distance below `limit`."""
    for a in range(37):
        if not first_mask[a]:
            continue
        for b in range(a if same_atom else 0, a + 1 if same_atom else 37):
            if second_mask[b]:
                square = 0
                for x in range(3):
                    step = first[a, x] - second[b, x]
                    square += step * step
                if square < limit:
                    return True
    return False

"""Residues of a complex that are near another chain."""

from __future__ import annotations

from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int

UNIT: Final = 1000
"""Distances are compared in whole thousandths of an ångström, alike on every machine."""


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
    known = mask > 0
    near = _near_others(
        fixed,
        known,
        np.asarray(asym_id, np.int64),
        *_spheres(fixed, known),
        threshold * UNIT,
        same_atom,
    )
    return np.flatnonzero(near)


def _spheres(fixed: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A sphere around the atoms of each residue: middle and radius, in thousandths."""
    count = np.maximum(known.sum(-1), 1)
    middle = np.where(known[..., None], fixed, 0).sum(1) / count[:, None]
    offset = np.where(known[..., None], fixed - middle[:, None], 0.0)
    return middle, np.sqrt((offset**2).sum(-1).max(-1)) + 1.0


def near_other_chains(
    points: Float[np.ndarray, "P 3"],
    chain: np.ndarray,
    targets: Float[np.ndarray, "T 3"],
    target_chain: np.ndarray,
    distance: float,
) -> np.ndarray:
    """Which points are within `distance`, in ångström, of a target of another chain, `bool[P]`.

    Compared in double precision; the distance itself is near.
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
    """Which points have a target of another chain whose squared distance is at most `limit`."""
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
    fixed: Any, known: Any, asym_id: Any, middle: Any, radius: Any, threshold: Any, same_atom: Any
) -> Any:
    """Which residues have an atom within `threshold` of one of another chain, `bool[L]`."""
    count = len(fixed)
    near = np.zeros(count, np.bool_)
    limit = threshold * threshold
    for i in range(count):
        for j in range(i + 1, count):
            if asym_id[i] == asym_id[j] or (near[i] and near[j]):
                continue
            reach = threshold + radius[i] + radius[j]
            apart = 0.0
            for x in range(3):
                step = middle[i, x] - middle[j, x]
                apart += step * step
            if apart >= reach * reach:
                continue
            if _touch(fixed[i], known[i], fixed[j], known[j], limit, same_atom):
                near[i] = True
                near[j] = True
    return near


@njit(cache=True, nogil=True)
@no_type_check
def _touch(one: Any, one_known: Any, two: Any, two_known: Any, limit: Any, same_atom: Any) -> Any:
    """Whether two residues have atoms whose squared distance is below `limit`."""
    for a in range(37):
        if not one_known[a]:
            continue
        for b in range(a if same_atom else 0, a + 1 if same_atom else 37):
            if two_known[b]:
                square = 0
                for x in range(3):
                    step = one[a, x] - two[b, x]
                    square += step * step
                if square < limit:
                    return True
    return False

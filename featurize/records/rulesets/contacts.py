"""Contacts between atoms of different chains, found with a grid of cells."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Integer

_HALF: Final = [step for step in itertools.product((-1, 0, 1), repeat=3) if step > (0, 0, 0)]


def contacts(
    position: Float[np.ndarray, "A 3"], group: Integer[np.ndarray, " A"], radius: float
) -> Integer[np.ndarray, "P 2"]:
    """Pairs of atoms of different groups at most `radius` apart, the lower row first.

    Atoms with a NaN or infinite coordinate are in no pair. Distances are float64.
    """
    rows = np.flatnonzero(np.isfinite(position).all(axis=1))
    if not len(rows):
        return np.zeros((0, 2), np.int64)
    xyz = position[rows].astype(np.float64)
    cell = np.floor((xyz - xyz.min(axis=0)) / radius).astype(np.int64) + 1
    size = cell.max(axis=0) + 2
    key = (cell[:, 0] * size[1] + cell[:, 1]) * size[2] + cell[:, 2]
    order = np.argsort(key, kind="stable")
    rows, xyz, key = rows[order], xyz[order], key[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    steps = np.array([0, *((x * size[1] + y) * size[2] + z for x, y, z in _HALF)], np.int64)
    cells = xyz, group[rows].astype(np.int64), key[first], np.append(first, len(key)), steps
    count = _near(*cells, float(radius) * radius, np.zeros((0, 2), np.int64))
    pairs = np.empty((count, 2), np.int64)
    _near(*cells, float(radius) * radius, pairs)
    pairs = np.sort(rows[pairs], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def groups_in_contact(
    position: Float[np.ndarray, "A 3"], group: Integer[np.ndarray, " A"], radius: float
) -> Integer[np.ndarray, "g 2"]:
    """Groups with atoms at most `radius` apart, each pair once, the lower first."""
    pairs = np.sort(group[contacts(position, group, radius)], axis=1)
    return np.unique(pairs, axis=0).reshape(-1, 2)


def contact_rows(
    pairs: Integer[np.ndarray, "P 2"], group: Integer[np.ndarray, " A"]
) -> dict[tuple[int, int], set[int]]:
    """Rows of group a that are in a pair with group b, by (a, b) and by (b, a)."""
    near: dict[tuple[int, int], set[int]] = {}
    for first, second in pairs.tolist():
        a, b = int(group[first]), int(group[second])
        near.setdefault((a, b), set()).add(first)
        near.setdefault((b, a), set()).add(second)
    return near


def clashing_groups(
    near: Mapping[tuple[int, int], set[int]],
    counts: Integer[np.ndarray, " C"],
    fraction: float,
    rank: Callable[[int], Any] = int,
) -> set[int]:
    """Chains to remove because more than a fraction of their atoms is near another chain.

    Of two chains, the one with the larger fraction is removed; of equal ones the smaller, then the
    later by `rank`.
    """
    removed: set[int] = set()
    pairs = {pair for pair in near if rank(pair[0]) < rank(pair[1])}
    for pair in sorted(pairs, key=lambda pair: [rank(chain) for chain in pair]):
        shares = {a: len(near[a, b]) / counts[a] for a, b in (pair, pair[::-1])}
        if removed.isdisjoint(pair) and max(shares.values()) > fraction:
            removed.add(max(pair, key=lambda chain: (shares[chain], -counts[chain], rank(chain))))
    return removed


@njit(cache=True, nogil=True)
@no_type_check
def _near(xyz: Any, group: Any, cells: Any, bounds: Any, steps: Any, limit: Any, pairs: Any) -> Any:
    """Number of pairs within the limit; fills `pairs` with as many of them as fit."""
    count = 0
    for step in steps:
        other = 0
        for cell in range(len(cells)):
            while other < len(cells) and cells[other] < cells[cell] + step:
                other += 1
            if other == len(cells) or cells[other] != cells[cell] + step:
                continue
            for i in range(bounds[cell], bounds[cell + 1]):
                for j in range(i + 1 if step == 0 else bounds[other], bounds[other + 1]):
                    square = 0.0
                    for axis in range(3):
                        apart = xyz[i, axis] - xyz[j, axis]
                        square += apart * apart
                    if square <= limit and group[i] != group[j]:
                        if count < len(pairs):
                            pairs[count, 0], pairs[count, 1] = i, j
                        count += 1
    return count

"""Bond lengths and angles inside residues, and the distance bounds that follow from them.

`stereochemistry.txt`: `A-B mean deviation` is a bond in ångström, `A-B-C mean deviation` an
angle in degrees. Values below `*` hold for all residues with these atoms, unless overridden.
Values: Engh and Huber, International Tables for Crystallography F (2001), 18.3.
Source of the bounds: AF2 SI 1.9.11.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np

from evofeed.protein.residue_geometry import RESIDUE_ATOMS
from evofeed.protein.residues import ATOM_TYPES, RESTYPE_3

VAN_DER_WAALS_RADIUS: Final = {"C": 1.7, "N": 1.55, "O": 1.52, "S": 1.8}
"""By element, ångström."""
ATOM37_RADIUS: Final = np.array([VAN_DER_WAALS_RADIUS[name[0]] for name in ATOM_TYPES])
CA_CA_DISTANCE: Final = 3.80209737096
"""Between consecutive residues in the trans configuration, ångström."""
C_N_LENGTH: Final = (1.329, 0.014)
"""Peptide bond: mean and deviation, ångström."""
C_N_LENGTH_PROLINE: Final = (1.341, 0.016)
"""The same before a proline."""
COS_C_N_CA: Final = (-0.5203, 0.0353)
"""Cosine of that angle: mean and deviation."""
COS_CA_C_N: Final = -0.4473
"""Cosine of that angle; its deviation is `LossConfig.ca_c_n_angle_stddev`."""


def _geometry() -> dict[str, dict[str, tuple[float, float]]]:
    """Mean and deviation of each bond and angle, by residue."""
    residues: dict[str, dict[str, tuple[float, float]]] = {}
    name = ""
    for line in Path(__file__).with_name("stereochemistry.txt").read_text().splitlines():
        if not line.startswith(" "):
            name = line.strip()
            atoms = {*RESIDUE_ATOMS.get(name, ())}
            shared = residues.get("*", {}).items()
            residues[name] = {key: value for key, value in shared if atoms >= {*key.split("-")}}
            continue
        words = line.split()
        for i in range(0, len(words), 3):
            residues[name][words[i]] = (float(words[i + 1]), float(words[i + 2]))
    return residues


def _angle_as_distance(
    bond_a: tuple[float, float], bond_b: tuple[float, float], angle: tuple[float, float]
) -> tuple[float, float]:
    """Length and deviation of the side opposite to an angle (degrees) between two bonds."""
    (a, sigma_a), (b, sigma_b) = bond_a, bond_b
    gamma, sigma_gamma = np.deg2rad(angle[0]), np.deg2rad(angle[1])
    length = np.sqrt(a**2 + b**2 - 2 * a * b * np.cos(gamma))
    # Errors propagate as if they were independent.
    by_angle = a * b * np.sin(gamma) / length * sigma_gamma
    by_a = (a - b * np.cos(gamma)) / length * sigma_a
    by_b = (b - a * np.cos(gamma)) / length * sigma_b
    return float(length), float(np.sqrt(by_angle**2 + by_a**2 + by_b**2))


def _fixed_distances(
    geometry: dict[str, tuple[float, float]],
) -> dict[tuple[str, str], tuple[float, float]]:
    """Mean and deviation of every distance fixed by a bond or by an angle."""
    bonds = {frozenset(k.split("-")): v for k, v in geometry.items() if k.count("-") == 1}
    distances = {}
    for key, value in geometry.items():
        first, *middle, last = key.split("-")
        if middle:
            sides = bonds[frozenset((first, *middle))], bonds[frozenset((*middle, last))]
            distances[first, last] = _angle_as_distance(*sides, value)
        else:
            distances[first, last] = value
    return distances


@lru_cache(maxsize=4)
def atom14_distance_bounds(
    overlap_tolerance: float, tolerance_factor: float
) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bound of the distance of two atoms of a residue, `f32[21, 14, 14]` each.

    Unbonded atoms may overlap by `overlap_tolerance` ångström; bonded distances may differ from
    their mean by `tolerance_factor` deviations.
    """
    lower = np.zeros([21, 14, 14], np.float32)
    upper = np.zeros([21, 14, 14], np.float32)
    geometry = _geometry()
    for i, name in enumerate(RESTYPE_3):
        slots = {atom: slot for slot, atom in enumerate(RESIDUE_ATOMS[name])}
        bounds = {
            (a, b): (
                VAN_DER_WAALS_RADIUS[a[0]] + VAN_DER_WAALS_RADIUS[b[0]] - overlap_tolerance,
                1e10,
            )
            for a, b in combinations(slots, 2)
        }
        for pair, (mean, sigma) in _fixed_distances(geometry[name]).items():
            bounds.pop(pair[::-1], None)
            tolerance = tolerance_factor * sigma
            bounds[pair] = (mean - tolerance, mean + tolerance)
        for (a, b), (low, high) in bounds.items():
            j, k = slots[a], slots[b]
            lower[i, [j, k], [k, j]] = low
            upper[i, [j, k], [k, j]] = high
    return lower, upper

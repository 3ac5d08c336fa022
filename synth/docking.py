"""Rigid docking of chains: the pose with the most contacts, among random ones.

A body is moved along a line up to its first contact with another: for two points that move on
lines, the distance at first contact is the root of a quadratic. So each pose costs one loop over
all pairs, without an array of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float

_TRIES = 96
_MIN_DISTANCE = 4.2  # ångström between CA atoms or side-chain centroids of different chains
_CONTACT, _NO_CONTACT = 8.0, 12.0  # ångström: the weight of a contact falls from 1 to 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Pose of a copy of an entity: `x -> rotation @ x + shift` of its centred fold."""

    entity: int
    rotation: Float[np.ndarray, "3 3"]
    shift: Float[np.ndarray, "3"]

    def move(self, points: np.ndarray) -> np.ndarray:
        """Points `[..., 3]` of the fold in the complex."""
        return np.asarray(points @ self.rotation.T + self.shift)


def dock(
    rng: np.random.Generator, bodies: list[Float[np.ndarray, "P 3"]], copies: int
) -> tuple[Placement, ...]:
    """Dock one of each body, and repeat that unit about an axis (C_n symmetry).

    Args:
        bodies: centred points of each entity: CA atoms and side-chain centroids, ångström.

    Returns:
        Placements by entity, then by copy.
    """
    unit = [Placement(entity=0, rotation=np.eye(3), shift=np.zeros(3))]
    for entity in range(1, len(bodies)):
        unit.append(_dock_body(rng, _points(unit, bodies), bodies[entity], entity))
    if copies == 1:
        return tuple(unit)
    turns = [_rotation_about_z(2 * np.pi * k / copies) for k in range(copies)]
    rotation, shift = _dock_ring(rng, _points(unit, bodies), turns)
    return tuple(
        Placement(
            entity=part.entity,
            rotation=turn @ rotation @ part.rotation,
            shift=turn @ (rotation @ part.shift + shift),
        )
        for part in unit
        for turn in turns
    )


def _points(parts: list[Placement], bodies: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.move(bodies[part.entity]) for part in parts])


def _dock_body(
    rng: np.random.Generator, fixed: np.ndarray, body: np.ndarray, entity: int
) -> Placement:
    """The pose of a body with the most contacts to fixed points."""
    best: tuple[float, Placement] | None = None
    for _ in range(_TRIES):
        rotation, line = _rotation(rng), _direction(rng)
        turned = body @ rotation.T
        distance = _contact_distance(fixed, turned, line)
        contacts = _contacts(fixed, turned + distance * line)
        if best is None or contacts > best[0]:
            best = contacts, Placement(entity=entity, rotation=rotation, shift=distance * line)
    assert best is not None
    return best[1]


def _dock_ring(
    rng: np.random.Generator, body: np.ndarray, turns: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Rotation and shift from the z axis of a body whose turned copies have the most contacts."""
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    line = np.array([1.0, 0.0, 0.0])
    centred = body - body.mean(0)
    for _ in range(_TRIES):
        rotation = _rotation(rng)
        turned = centred @ rotation.T
        copies = [(turned @ turn.T, turn @ line - line) for turn in turns[1:]]
        distance = max(_contact_distance(turned, copy, motion) for copy, motion in copies)
        contacts = sum(_contacts(turned, copy + distance * motion) for copy, motion in copies)
        if best is None or contacts > best[0]:
            best = contacts, rotation, distance * line - rotation @ body.mean(0)
    assert best is not None
    return best[1], best[2]


@njit(cache=True, nogil=True)
@no_type_check
def _contact_distance(fixed: np.ndarray, moving: np.ndarray, line: np.ndarray) -> float:
    """The least distance along a line beyond which all pairs are `_MIN_DISTANCE` apart."""
    distance, square = 0.0, (line**2).sum()
    for point in fixed:
        for x, y, z in moving - point:
            half = (x * line[0] + y * line[1] + z * line[2]) / square
            discriminant = half**2 - (x * x + y * y + z * z - _MIN_DISTANCE**2) / square
            if discriminant > 0:
                distance = max(distance, np.sqrt(discriminant) - half)
    return distance


@njit(cache=True, nogil=True)
@no_type_check
def _contacts(fixed: np.ndarray, moving: np.ndarray) -> float:
    """The number of contacts, those between `_CONTACT` and `_NO_CONTACT` in part."""
    total = 0.0
    for point in fixed:
        for x, y, z in moving - point:
            distance = np.sqrt(x * x + y * y + z * z)
            total += min(max((_NO_CONTACT - distance) / (_NO_CONTACT - _CONTACT), 0.0), 1.0)
    return total


def _direction(rng: np.random.Generator) -> np.ndarray:
    line = rng.normal(size=3)
    return line / np.linalg.norm(line)


def _rotation(rng: np.random.Generator) -> np.ndarray:
    """A random rotation: the quaternion is a random direction in four dimensions."""
    w, x, y, z = (q := rng.normal(size=4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _rotation_about_z(angle: float) -> np.ndarray:
    turn = np.eye(3)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn

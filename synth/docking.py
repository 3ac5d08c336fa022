"""Chains placed beside each other: the pose, among random ones, in which they touch the most.

A body is pushed along a line until its first points meet those of another: for two points that
move on lines, the place where they come within a distance is the root of a quadratic, so each
pose costs one look at all pairs, of which no array is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float

_TRIES = 96
_NEAREST = 4.2  # ångström between CA atoms or side-chain centroids of different chains
_TOUCH, _FAR = 8.0, 12.0  # a contact counts whole below, and nothing beyond


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a copy of an entity is: `x -> rotation @ x + shift` of its centred fold."""

    entity: int
    rotation: Float[np.ndarray, "3 3"]
    shift: Float[np.ndarray, "3"]

    def move(self, points: np.ndarray) -> np.ndarray:
        """Points `[..., 3]` of the fold, in the complex."""
        return np.asarray(points @ self.rotation.T + self.shift)


def dock(
    rng: np.random.Generator, bodies: list[Float[np.ndarray, "P 3"]], copies: int
) -> tuple[Placement, ...]:
    """One of each body side by side, and the whole of it repeated about an axis (C_n).

    Args:
        bodies: centred points of each entity: CA atoms and side-chain centroids, ångström.

    Returns:
        Placements, entity by entity, copies side by side.
    """
    unit = [Placement(entity=0, rotation=np.eye(3), shift=np.zeros(3))]
    for entity in range(1, len(bodies)):
        unit.append(_beside(rng, _points(unit, bodies), bodies[entity], entity))
    if copies == 1:
        return tuple(unit)
    turns = [_about_z(2 * np.pi * k / copies) for k in range(copies)]
    home, shift = _ring(rng, _points(unit, bodies), turns)
    return tuple(
        Placement(
            entity=part.entity,
            rotation=turn @ home @ part.rotation,
            shift=turn @ (home @ part.shift + shift),
        )
        for part in unit
        for turn in turns
    )


def _points(parts: list[Placement], bodies: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.move(bodies[part.entity]) for part in parts])


def _beside(
    rng: np.random.Generator, fixed: np.ndarray, body: np.ndarray, entity: int
) -> Placement:
    """The pose of a body that touches fixed points the most."""
    best: tuple[float, Placement] | None = None
    for _ in range(_TRIES):
        rotation, line = _rotation(rng), _direction(rng)
        turned = body @ rotation.T
        distance = _last_meeting(fixed, turned, line)
        contacts = _contacts(fixed, turned + distance * line)
        if best is None or contacts > best[0]:
            best = contacts, Placement(entity=entity, rotation=rotation, shift=distance * line)
    assert best is not None
    return best[1]


def _ring(
    rng: np.random.Generator, body: np.ndarray, turns: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Rotation and shift from the z axis of a body whose turned copies touch the most."""
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    line = np.array([1.0, 0.0, 0.0])
    centred = body - body.mean(0)
    for _ in range(_TRIES):
        rotation = _rotation(rng)
        turned = centred @ rotation.T
        others = [(turned @ turn.T, turn @ line - line) for turn in turns[1:]]
        distance = max(_last_meeting(turned, other, way) for other, way in others)
        contacts = sum(_contacts(turned, other + distance * way) for other, way in others)
        if best is None or contacts > best[0]:
            best = contacts, rotation, distance * line - rotation @ body.mean(0)
    assert best is not None
    return best[1], best[2]


@njit(cache=True, nogil=True)
@no_type_check
def _last_meeting(fixed: np.ndarray, moving: np.ndarray, line: np.ndarray) -> float:
    """The least distance along a line from which on all pairs are farther than `_NEAREST`."""
    last, square = 0.0, (line**2).sum()
    for one in fixed:
        for x, y, z in moving - one:
            half = (x * line[0] + y * line[1] + z * line[2]) / square
            left = half**2 - (x * x + y * y + z * z - _NEAREST**2) / square
            if left > 0:
                last = max(last, np.sqrt(left) - half)
    return last


@njit(cache=True, nogil=True)
@no_type_check
def _contacts(fixed: np.ndarray, moving: np.ndarray) -> float:
    total = 0.0
    for one in fixed:
        for x, y, z in moving - one:
            distance = np.sqrt(x * x + y * y + z * z)
            total += min(max((_FAR - distance) / (_FAR - _TOUCH), 0.0), 1.0)
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


def _about_z(angle: float) -> np.ndarray:
    turn = np.eye(3)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    return turn

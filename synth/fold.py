"""Protein-like backbones: helices, strands and loops, compact, self-avoiding.

A chain is grown segment by segment from ideal bond geometry (Engh and Huber 1991);
each segment takes, among many random loops before it, the one without clashes that
keeps the chain most compact. Frames are AF2's backbone frames: CA at the origin,
C on x, N in the upper xy half-plane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int
from evofeed.protein.residue_geometry import (
    ATOM14_GROUP,
    ATOM14_MASK,
    ATOM14_POSITIONS,
    CHI_MASK,
    DEFAULT_FRAMES,
)

HELIX, STRAND, LOOP = "HEC"
_PHI_PSI = {HELIX: (-62.0, -43.0), STRAND: (-120.0, 130.0)}
LOOP_BASINS = np.array([(-65, -40), (-75, 145), (-120, 130), (-90, 0), (-60, 140), (57, 40)])
LOOP_WEIGHTS = np.array([0.25, 0.25, 0.2, 0.15, 0.1, 0.05])
_CANDIDATES = 384  # of a segment
_ROTAMERS = 3  # of a residue
MIN_DISTANCE = 3.7  # ångström between CA or side-chain centroids of residues >= 3 apart
CENTROID = np.array([-0.9, -1.3, -2.0])  # of a typical side chain, in the CA frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Secondary structure (`H`, `E`, `C`) and torsions in radians, `f64[L]` each."""

    ss: str
    phi: np.ndarray
    psi: np.ndarray


def random_fold(rng: np.random.Generator, num_res: int) -> Fold:
    """A compact, self-avoiding fold of `num_res` residues."""
    best: tuple[int, Fold] | None = None
    for _ in range(6):
        clashes, fold = _grow(rng, _segments(rng, num_res))
        if best is None or clashes < best[0]:
            best = clashes, fold
        if clashes == 0:
            break
    assert best is not None
    return best[1]


def _segments(rng: np.random.Generator, num_res: int) -> list[str]:
    """Runs of secondary structure with loops between them, `num_res` letters in total."""
    helix_share = rng.choice([0.9, 0.5, 0.1])  # all alpha, mixed, all beta
    runs: list[str] = [LOOP * int(rng.integers(1, 4))]
    while sum(map(len, runs)) < num_res:
        is_helix = rng.random() < helix_share
        length = int(rng.integers(8, 19)) if is_helix else int(rng.integers(4, 9))
        runs += [(HELIX if is_helix else STRAND) * length, LOOP * int(rng.integers(2, 7))]
    runs[-1] = runs[-1][: max(0, len(runs[-1]) - sum(map(len, runs)) + num_res)]
    if not runs[-1]:
        excess = sum(map(len, runs)) - num_res
        runs[-2] = runs[-2][: len(runs[-2]) - excess]
    return [run for run in runs if run]


def _grow(rng: np.random.Generator, runs: list[str]) -> tuple[int, Fold]:
    """A fold with these runs, and its number of clashes."""
    num_res = sum(map(len, runs))
    phi, psi = np.zeros(num_res), np.zeros(num_res)
    points = np.zeros([num_res, 2, 3])
    rot, origin, end, clashes = np.eye(3), np.zeros(3), 0, 0
    for k in range(0, len(runs), 2):  # a loop and the helix or strand after it
        ss = "".join(runs[k : k + 2])
        span = slice(end, end + len(ss))
        angles = _draw_torsions(rng, ss, _CANDIDATES)
        # the frame of the first residue of a segment already depends on its own phi
        rots, origins = walk(rot, origin, angles, end == 0, psi[end - 1])
        candidates = np.stack([origins, origins + rots @ CENTROID], axis=2)
        clash_counts, energy = _score(points[:end], candidates)
        pick = int(np.lexsort([energy, clash_counts])[0])
        clashes += int(clash_counts[pick])
        phi[span], psi[span] = angles[pick].T
        points[span] = candidates[pick]
        rot, origin, end = rots[pick, -1], origins[pick, -1], end + len(ss)
    return clashes, Fold(ss="".join(runs), phi=phi, psi=psi)


def _draw_torsions(rng: np.random.Generator, ss: str, count: int) -> Float[np.ndarray, "K n 2"]:
    """Phi and psi of `count` random candidates for a segment, radians."""
    basin = rng.choice(len(LOOP_BASINS), size=[count, len(ss)], p=LOOP_WEIGHTS)
    angles = LOOP_BASINS[basin] + rng.normal(0, 12, [count, len(ss), 2])
    for i, kind in enumerate(ss):
        if kind != LOOP:
            angles[:, i] = _PHI_PSI[kind] + rng.normal(0, 3, [count, 2])
    return np.radians(angles)


@njit(cache=True, nogil=True)
@no_type_check
def walk(rot, origin, angles, is_first, previous_psi):
    """Frames `[K, n, 3, 3]`, `[K, n, 3]` of K candidates for a segment that follows a residue.

    `is_first`: the segment begins the chain, with the frame `rot`, `origin`.
    """
    count, length, _ = angles.shape
    rots, origins = np.empty((count, length, 3, 3)), np.empty((count, length, 3))
    step = np.empty((4, 3))
    for k in range(count):
        for i in range(length):
            if i == 0 and is_first:
                rots[k, i], origins[k, i] = rot, origin
                continue
            psi = previous_psi if i == 0 else angles[k, i - 1, 1]
            _step(psi, angles[k, i, 0], step)
            axes, ca = (rot, origin) if i == 0 else (rots[k, i - 1], origins[k, i - 1])
            for x in range(3):
                origins[k, i, x] = ca[x]
                for y in range(3):
                    origins[k, i, x] += axes[x, y] * step[3, y]
                    rots[k, i, x, y] = 0.0
                    for z in range(3):
                        rots[k, i, x, y] += axes[x, z] * step[y, z]
    return rots, origins


@njit(cache=True, nogil=True)
@no_type_check
def _step(psi, phi, out):
    """Frame of the next residue over a trans peptide bond: its axes, then its CA."""
    n, ca, c = (-0.525, 1.363, 0.0), (0.0, 0.0, 0.0), (1.526, 0.0, 0.0)
    next_n = _extend(n, ca, c, 1.329, 116.6, psi)
    next_ca = _extend(ca, c, next_n, 1.460, 121.7, np.pi)
    next_c = _extend(c, next_n, next_ca, 1.526, 111.07, phi)
    ex = _unit(_minus(next_c, next_ca))
    ez = _unit(_cross(ex, _minus(next_n, next_ca)))
    ey = _cross(ez, ex)
    for x in range(3):
        out[0, x], out[1, x], out[2, x], out[3, x] = ex[x], ey[x], ez[x], next_ca[x]


@njit(cache=True, nogil=True)
@no_type_check
def _extend(a, b, c, length, degrees, torsion):
    """The atom bonded to `c` at this length, angle b-c-atom and torsion (radians)."""
    angle = degrees * np.pi / 180
    along = _unit(_minus(c, b))
    normal = _unit(_cross(_minus(b, a), along))
    side = _cross(normal, along)
    x = -length * np.cos(angle)
    y = length * np.sin(angle) * np.cos(torsion)
    z = length * np.sin(angle) * np.sin(torsion)
    return (
        c[0] + x * along[0] + y * side[0] + z * normal[0],
        c[1] + x * along[1] + y * side[1] + z * normal[1],
        c[2] + x * along[2] + y * side[2] + z * normal[2],
    )


@njit(cache=True, nogil=True)
@no_type_check
def _minus(a, b):
    return (a[0] - b[0], a[1] - b[1], a[2] - b[2])


@njit(cache=True, nogil=True)
@no_type_check
def _cross(a, b):
    return (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])


@njit(cache=True, nogil=True)
@no_type_check
def _unit(a):
    norm = np.sqrt(a[0] * a[0] + a[1] * a[1] + a[2] * a[2])
    return (a[0] / norm, a[1] / norm, a[2] / norm)


@njit(cache=True, nogil=True)
@no_type_check
def _score(grown: np.ndarray, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Clashes of each candidate with the grown chain, and its energy (spread minus contacts)."""
    clashes, energy = np.zeros(len(candidates)), np.zeros(len(candidates))
    num_grown, length = len(grown), candidates.shape[1]
    centre = np.zeros(3)
    for j in range(num_grown):
        centre += grown[j, 0] / num_grown
    for k in range(len(candidates)):
        for i in range(length):
            for x in range(3):
                energy[k] += 0.06 * (candidates[k, i, 0, x] - centre[x]) ** 2 * (num_grown > 0)
            for j in range(num_grown + i - 2):  # neighbours in sequence may be close
                for a in range(2):
                    for b in range(2):
                        other = grown[j, b] if j < num_grown else candidates[k, j - num_grown, b]
                        square = 0.0
                        for x in range(3):
                            square += (candidates[k, i, a, x] - other[x]) ** 2
                        clashes[k] += square < MIN_DISTANCE**2
                        energy[k] -= a == 1 and b == 1 and square < 64.0
    return clashes, energy


def loop_basins(fold: Fold) -> Int[np.ndarray, " L"]:
    """The basin of `LOOP_BASINS` nearest to each residue's torsions."""
    torsions = np.stack([fold.phi, fold.psi], axis=-1)[:, None]
    difference = (torsions - np.radians(LOOP_BASINS) + np.pi) % (2 * np.pi) - np.pi
    return np.asarray((difference**2).sum(-1).argmin(1))


def frames(fold: Fold) -> tuple[Float[np.ndarray, "L 3 3"], Float[np.ndarray, "L 3"]]:
    """Backbone frames of a fold, centred on the mean CA."""
    angles = np.stack([fold.phi, fold.psi], axis=-1)[None]
    rots, origins = walk(np.eye(3), np.zeros(3), angles, True, 0.0)
    return rots[0], origins[0] - origins[0].mean(axis=0)


def centroids(rots: np.ndarray, origins: np.ndarray) -> Float[np.ndarray, "L 3"]:
    """Approximate side-chain centroids of residues."""
    return np.asarray(origins + rots @ CENTROID)


def all_atoms(
    rng: np.random.Generator, aatype: Int[np.ndarray, " L"], fold: Fold
) -> Float[np.ndarray, "L 14 3"]:
    """Positions of all heavy atoms (atom14), with the least crowded of a few random rotamers."""
    rots, origins = frames(fold)
    angles, residues = [-60.0, 180.0, 60.0], np.arange(len(aatype))
    staggered = rng.choice(angles, size=[_ROTAMERS, len(aatype), 4], p=[0.5, 0.35, 0.15])
    chi = np.radians(staggered + rng.normal(0, 8, staggered.shape)) * CHI_MASK[aatype]
    atoms = np.stack([_atom_positions(aatype, rots, origins, fold.psi, angle) for angle in chi])
    mask = ATOM14_MASK[aatype][None, :, 4:, None]
    tips = (atoms[:, :, 4:] * mask).sum(2) / np.maximum(mask.sum(2), 1)
    distance = np.linalg.norm(tips[:, :, None] - centroids(rots, origins)[None, None], axis=-1)
    distance[:, residues, residues] = np.inf
    best = distance.min(-1).argmax(0)
    return np.asarray(atoms[best, residues])


def _atom_positions(
    aatype: np.ndarray, rots: np.ndarray, origins: np.ndarray, psi: np.ndarray, chi: np.ndarray
) -> np.ndarray:
    """Atoms from the ideal positions of their rigid groups (AF2 SI algorithm 24)."""
    torsion = np.concatenate([psi[:, None], chi], axis=1)
    local = DEFAULT_FRAMES[aatype].astype(np.float64)
    groups = np.tile(np.eye(4), [len(aatype), 8, 1, 1])
    for k in range(5):
        turned = local[:, 3 + k] @ _rotation_about_x(torsion[:, k])
        groups[:, 3 + k] = turned if k < 2 else groups[:, 2 + k] @ turned
    frame = groups[np.arange(len(aatype))[:, None], ATOM14_GROUP[aatype]]
    ideal = ATOM14_POSITIONS[aatype]
    in_backbone = np.einsum("laij,laj->lai", frame[..., :3, :3], ideal) + frame[..., :3, 3]
    return np.asarray(np.einsum("lij,laj->lai", rots, in_backbone) + origins[:, None])


def _rotation_about_x(angle: np.ndarray) -> np.ndarray:
    turn = np.tile(np.eye(4), [len(angle), 1, 1])
    turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
    turn[:, 2, 1] = np.sin(angle)
    turn[:, 1, 2] = -np.sin(angle)
    return turn

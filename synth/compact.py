"""Simulated annealing of a grown chain's loops, until its core is as dense as a protein's.

Growth alone leaves 0.6 contacts per residue (side chains within 8 ångström, six or more apart in
sequence) and a radius of gyration a quarter above a globule's; real domains have 1.5 to 2 contacts
per residue. Contacts covary, so only a dense fold can be inferred from an alignment.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from numba import njit

from evofeed.synth import fold as folds

_STEPS = 2000
_START_TEMPERATURE, _END_TEMPERATURE = 4.0, 0.05  # in contacts
_SPREAD, _CONTACT, _CLASH = 0.03, 2.0, 20.0  # per squared ångström, per contact, per clash
_WIDTH = np.radians(12.0)  # of a torsion basin
_NUDGE = 0.1  # radians


def compact(rng: np.random.Generator, fold: folds.Fold, steps: int = _STEPS) -> folds.Fold:
    """A fold with the same secondary structure and loop torsions annealed by Metropolis steps.

    Args:
        steps: number of torsion moves; each costs L^2 distances.
    """
    loops = np.flatnonzero(np.array(list(fold.ss)) == folds.LOOP)
    phi, psi = fold.phi.copy(), fold.psi.copy()
    basins = np.radians(folds.LOOP_BASINS.astype(np.float64))
    basin_cdf = np.cumsum(folds.LOOP_WEIGHTS)
    seed = np.uint64(rng.integers(1, 2**63))
    _anneal(phi, psi, loops, basins, basin_cdf, steps, seed)
    return folds.Fold(ss=fold.ss, phi=phi, psi=psi)


@njit(cache=True, nogil=True)
@no_type_check
def _anneal(phi, psi, loops, basins, basin_cdf, steps, seed):
    """Anneal `phi` and `psi` in place, by jumps between basins and nudges."""
    state = np.array([seed], np.uint64)
    energy = _energy(phi, psi)
    for step in range(steps):
        temperature = _START_TEMPERATURE * (1.0 - step / steps) ** 2 + _END_TEMPERATURE
        site = loops[int(uniform(state) * len(loops))]
        old_phi, old_psi = phi[site], psi[site]
        if uniform(state) < 0.5:
            basin = min(int(np.searchsorted(basin_cdf, uniform(state))), len(basins) - 1)
            phi[site] = basins[basin, 0] + _WIDTH * normal(state)
            psi[site] = basins[basin, 1] + _WIDTH * normal(state)
        else:
            phi[site] += _NUDGE * normal(state)
            psi[site] += _NUDGE * normal(state)
        new_energy = _energy(phi, psi)
        if new_energy <= energy or uniform(state) < np.exp((energy - new_energy) / temperature):
            energy = new_energy
        else:
            phi[site], psi[site] = old_phi, old_psi


@njit(cache=True, nogil=True)
@no_type_check
def _energy(phi, psi):
    """Spread about the centre, minus contacts (1 below 8 ångström, 0 at 12), plus clashes."""
    length = len(phi)
    angles = np.empty((1, length, 2))
    angles[0, :, 0], angles[0, :, 1] = phi, psi
    rots, origins = folds.walk(np.eye(3), np.zeros(3), angles, True, 0.0)
    points = np.empty((length, 2, 3))  # CA and side-chain centroid
    centre = np.zeros(3)
    for i in range(length):
        for x in range(3):
            points[i, 0, x] = origins[0, i, x]
            points[i, 1, x] = origins[0, i, x]
            for y in range(3):
                points[i, 1, x] += rots[0, i, x, y] * folds.CENTROID[y]
            centre[x] += origins[0, i, x] / length
    energy = 0.0
    for i in range(length):
        for x in range(3):
            energy += _SPREAD * (points[i, 0, x] - centre[x]) ** 2
        for j in range(i - 2):  # neighbours in sequence may be close
            for a in range(2):
                for b in range(2):
                    square = 0.0
                    for x in range(3):
                        square += (points[i, a, x] - points[j, b, x]) ** 2
                    if square < folds.MIN_DISTANCE**2:
                        energy += _CLASH
                    if a == 1 and b == 1 and j < i - 5 and square < 144.0:
                        energy -= _CONTACT * (1.0 if square < 64.0 else (144.0 - square) / 160.0)
    return energy


@njit(cache=True, nogil=True)
@no_type_check
def uniform(state: np.ndarray) -> float:
    """The next number in [0, 1) of a splitmix64 stream; advances its state, `u64[1]`."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
@no_type_check
def normal(state: np.ndarray) -> float:
    """A standard normal number (Box and Muller 1958); takes two numbers of the stream."""
    radius = np.sqrt(-2.0 * np.log(1.0 - uniform(state)))
    return radius * np.cos(2.0 * np.pi * uniform(state))

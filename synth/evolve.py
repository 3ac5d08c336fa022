"""Families of sequences that share a fold and covary at its contacts.

A root sequence is relaxed under fields (burial, secondary structure, preferences
of each site) and couplings at the contacts of the fold, then copied down a random
tree under the same energy: so conservation differs between columns (gamma rates)
and contacting columns covary, from which a distogram can be learned. Energy
model: a Potts model with a physical contact term; exchangeability: BLOSUM62.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int
from evofeed.protein.residues import GAP, RESTYPES
from evofeed.synth import fold as folds
from evofeed.synth.compact import compact, uniform
from evofeed.synth.docking import Placement, dock

_TABLE = np.loadtxt(Path(__file__).with_name("residues.txt"), usecols=range(1, 5))  # as RESTYPES
BACKGROUND, _HYDROPATHY, _VOLUME, _CHARGE = np.ascontiguousarray(_TABLE.T)
BACKGROUND /= BACKGROUND.sum()
_HYDROPATHY /= 3  # to about one
_VOLUME = (_VOLUME - _VOLUME.mean()) / _VOLUME.std()
_SS_PREFERENCES = {folds.HELIX: "AELKMQR", folds.STRAND: "VIYFWTC"}
_BASIN_PREFERENCES = ("AEKQR", "PVTS", "VITYF", "DNST", "PLVI", "GN")  # by LOOP_BASINS
_MAX_CONTACTS = 16
_CONTACT = 8.0  # ångström between side-chain centroids
_STRENGTH = 1.6
_BRANCH = 8.0  # substitutions tried per site: so many that rows are nearly independent
_INDELS = 0.09  # runs of columns opened or closed, per substitution tried per site

Energy = tuple[Float[np.ndarray, "X 20"], Int[np.ndarray, "X D"], Int[np.ndarray, "X D"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Homologous sequences in one alignment.

    Attributes:
        rows: `u8[n, X]` codes, GAP where a sequence has no residue; row 0 is the root.
        core: `bool[X]`, columns of the fold; the others are insertions.
        fold: the structure that all members share, one residue per core column.
    """

    rows: np.ndarray
    core: np.ndarray
    fold: folds.Fold


def evolve(
    rng: np.random.Generator, lengths: list[int], copies: int, num_leaves: int
) -> tuple[tuple[Family, ...], tuple[Placement, ...]]:
    """Random folds docked to a complex, and a family of each fold, with `num_leaves` organisms.

    Contacts between chains couple letters as those within chains do. Row k of each family is of
    organism k: sites of two entities covary between their rows, sites of two copies within one.

    Args:
        copies: number of copies of every entity, about one axis.
    """
    drawn = [compact(rng, folds.random_fold(rng, length)) for length in lengths]
    columns = [_core_columns(rng, fold.ss) for fold in drawn]
    frames = [folds.frames(fold) for fold in drawn]
    centroids = [folds.centroids(*frame) for frame in frames]
    bodies = [
        np.concatenate([origins, of_fold])
        for (_, origins), of_fold in zip(frames, centroids, strict=True)
    ]
    placements = dock(rng, bodies, copies)
    crowding, contact = _contacts(centroids, placements)
    core = np.concatenate(columns)
    rows = _evolve_rows(rng, core, _energy(rng, drawn, core, crowding, contact), num_leaves)
    parts = np.split(rows, np.cumsum([len(core) for core in columns])[:-1], axis=1)
    families = (
        Family(rows=part, core=core, fold=fold)
        for part, core, fold in zip(parts, columns, drawn, strict=True)
    )
    return tuple(families), placements


def _contacts(
    centroids: list[np.ndarray], placements: tuple[Placement, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Neighbour counts of each site of the entities in the complex, and the contact map."""
    starts = np.cumsum([0, *map(len, centroids)])
    crowding, contact = np.zeros(starts[-1]), np.zeros([starts[-1]] * 2, bool)
    for entity in range(len(centroids)):
        copy = next(p for p in placements if p.entity == entity)  # as all others: C_n symmetry
        rows, points = slice(starts[entity], starts[entity + 1]), copy.move(centroids[entity])
        for other in placements:
            others = other.move(centroids[other.entity])
            distance = np.linalg.norm(points[:, None] - others[None], axis=-1)
            touch = distance < _CONTACT
            if other is copy:
                index = np.arange(len(points))
                touch &= np.abs(np.subtract.outer(index, index)) >= 4
            if other.entity == entity:
                np.fill_diagonal(touch, False)
            contact[rows, starts[other.entity] : starts[other.entity + 1]] |= touch
            crowding[rows] += (distance < 10).sum(1)
    return crowding, contact


def _evolve_rows(
    rng: np.random.Generator, core: np.ndarray, energy: Energy, num_leaves: int
) -> np.ndarray:
    """Rows of the root and the leaves of a random tree, over the columns of all folds."""
    rates = rng.gamma(0.7, 1.0, len(core)) + 0.05
    rates[~core] += 1.0
    rate_cdf = np.cumsum(rates) / rates.sum()
    root = rng.choice(20, size=len(core), p=BACKGROUND).astype(np.uint8)
    parent, length = _tree(rng, num_leaves)
    moves = rng.poisson(length * core.sum())
    moves[0] = 40 * len(core)  # so many that the root's sequence fits the fold
    gaps = np.where(length > 0, rng.poisson(length * _INDELS), 0)
    seed = np.uint64(rng.integers(1, 2**63))
    couplings = _STRENGTH * _couplings()
    rows = _descend(
        root, core, parent, moves, gaps, rate_cdf, *energy, couplings, _proposals(), seed
    )
    leaves = np.setdiff1d(np.arange(len(parent)), parent[1:])
    return np.concatenate([rows[:1], rows[leaves]])


def _core_columns(rng: np.random.Generator, ss: str) -> np.ndarray:
    """Mask of core columns; the others are insertions, which are inside loops only."""
    core: list[bool] = []
    for i, kind in enumerate(ss):
        core.append(True)
        if kind == folds.LOOP and 0 < i < len(ss) - 1 and rng.random() < 0.35:
            core += [False] * int(rng.integers(1, 9))
    return np.array(core)


def _energy(
    rng: np.random.Generator,
    drawn: list[folds.Fold],
    core: np.ndarray,
    crowding: np.ndarray,
    contact: np.ndarray,
) -> Energy:
    """Fields of each column, the columns in contact with it (-1 for none), and coupling kinds."""
    sites = np.flatnonzero(core)
    burial = (crowding - crowding.mean()) / (crowding.std() + 1e-9)
    fields = rng.normal(0, 0.4, [len(core), 20])
    fields[sites] += 0.5 * burial[:, None] * _HYDROPATHY
    letters = "".join(fold.ss for fold in drawn)
    basins = np.concatenate([folds.loop_basins(fold) for fold in drawn])
    for site, ss, basin in zip(sites, letters, basins, strict=True):
        preferred = _BASIN_PREFERENCES[basin] if ss == folds.LOOP else _SS_PREFERENCES[ss]
        fields[site, [RESTYPES.index(c) for c in preferred]] += 1.0 if ss == folds.LOOP else 0.5
    functional = sites[rng.random(len(sites)) < 0.06]
    fields[functional, rng.choice(20, size=len(functional), p=BACKGROUND)] += 4.0
    neighbours = np.full([len(core), _MAX_CONTACTS], -1)
    for i in range(len(sites)):
        near = np.flatnonzero(contact[i])[:_MAX_CONTACTS]
        neighbours[sites[i], : len(near)] = sites[near]
    kind = rng.integers(3, size=[len(core), len(core)])
    kind = np.minimum(kind, kind.T)  # symmetric
    kinds = kind[np.arange(len(core))[:, None], neighbours]
    # A contact must couple letters, not prefer some: its mean effect on each letter, over all
    # partners, is subtracted from the field.
    mean_effect = np.log(np.exp(_STRENGTH * _couplings()) @ BACKGROUND)
    fields -= np.where(neighbours[..., None] >= 0, mean_effect[kinds], 0).sum(1)
    return fields, neighbours, kinds


@functools.cache
def _couplings() -> Float[np.ndarray, "3 20 20"]:
    """Couplings by similar hydropathy, opposite charge and complementary size; unit variance."""
    kernels = []
    for values, sign in ((_HYDROPATHY, 1), (_CHARGE, -1), (_VOLUME, -1)):
        centred = values - BACKGROUND @ values
        kernels.append(sign * np.outer(centred, centred) / (BACKGROUND @ centred**2))
    return np.array(kernels)


@functools.cache
def blosum62() -> Int[np.ndarray, "20 20"]:
    """BLOSUM62 scores in RESTYPES order (Henikoff and Henikoff 1992)."""
    from Bio.Align import substitution_matrices

    matrix = substitution_matrices.load("BLOSUM62")  # type: ignore[no-untyped-call]
    return np.array([[int(matrix[a][b]) for b in RESTYPES] for a in RESTYPES])


@functools.cache
def _proposals() -> Float[np.ndarray, "20 20"]:
    """Cumulative probability of each substitution: background x BLOSUM62 odds (half-bits)."""
    odds = BACKGROUND[None] * 2 ** (blosum62() / 2)
    np.fill_diagonal(odds, 0)
    return np.asarray(np.cumsum(odds / odds.sum(1, keepdims=True), axis=1))


def _tree(rng: np.random.Generator, num_leaves: int) -> tuple[np.ndarray, np.ndarray]:
    """Parents (each before its children) and branch lengths in substitutions tried per site."""
    parent, open_nodes = [0], [0]
    while len(open_nodes) < num_leaves:
        node = open_nodes.pop(int(rng.integers(len(open_nodes))))
        open_nodes += [len(parent), len(parent) + 1]
        parent += [node, node]
    length = rng.exponential(_BRANCH, len(parent))
    length[0] = 0.0
    return np.array(parent), length


@njit(cache=True, nogil=True)
@no_type_check
def _descend(
    root: np.ndarray,
    core: np.ndarray,
    parent: np.ndarray,
    moves: np.ndarray,
    gaps: np.ndarray,
    rate_cdf: np.ndarray,
    fields: np.ndarray,
    neighbours: np.ndarray,
    kinds: np.ndarray,
    couplings: np.ndarray,
    proposals: np.ndarray,
    seed: np.uint64,
) -> np.ndarray:
    """Sequence of every node: its parent's after `moves` Metropolis steps and `gaps` indels."""
    columns = len(root)
    rows = np.empty((len(parent), columns), np.uint8)
    state = np.array([seed], np.uint64)
    for node in range(len(parent)):
        row = rows[node]
        row[:] = root if node == 0 else rows[parent[node]]
        for _ in range(moves[node]):
            site = min(int(np.searchsorted(rate_cdf, uniform(state))), columns - 1)
            old = row[site]
            if old == GAP:
                continue
            new = min(int(np.searchsorted(proposals[old], uniform(state))), 19)
            gain = fields[site, new] - fields[site, old]
            for k in range(neighbours.shape[1]):
                other = neighbours[site, k]
                if other >= 0 and row[other] != GAP:
                    table = couplings[kinds[site, k]]
                    gain += table[new, row[other]] - table[old, row[other]]
            if gain >= 0 or uniform(state) < np.exp(gain):
                row[site] = new
        if node == 0:
            row[~core] = GAP
        for _ in range(gaps[node]):
            _indel(row, core, state)
    return rows


@njit(cache=True, nogil=True)
@no_type_check
def _indel(row: np.ndarray, core: np.ndarray, state: np.ndarray) -> None:
    """Open or close a run of columns: insertions outside the core, deletions in it."""
    start = int(uniform(state) * len(row))
    length = 1 + int(-2.5 * np.log(1.0 - uniform(state)))
    insert = not core[start]
    for site in range(start, min(start + length, len(row))):
        if insert and not core[site] and row[site] == GAP:
            row[site] = int(uniform(state) * 20)
        elif not insert:
            row[site] = GAP

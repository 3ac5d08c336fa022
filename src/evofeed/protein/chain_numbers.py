"""Summaries of a chain for plots, as arrays: coverage, identity, pseudo-beta and CA atoms."""

from __future__ import annotations

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER, GAP, RESTYPES


def msa_coverage(record: ChainRecord) -> tuple[np.ndarray, np.ndarray]:
    """Rows that cover each residue `i64[L]`, and each row's identity to the query `f64[N]`.

    The identity is over the residues that a row covers, so a short hit may be identical.
    """
    covered = record.msa != GAP
    same = (record.msa == record.msa[0]) & covered
    return covered.sum(0), same.sum(1) / np.maximum(covered.sum(1), 1)


def msa_cells(record: ChainRecord) -> np.ndarray:
    """`f64[N, L]` each row's identity where it covers a residue, NaN in gaps; the query is last."""
    _, identity = msa_coverage(record)
    order = np.argsort(identity, kind="stable")
    return np.where(record.msa[order] != GAP, identity[order][:, None], np.nan)


def pseudo_beta(
    aatype: np.ndarray, positions: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """CB atoms (CA of glycine), `[L, 3]` of `[L, 37, 3]`, and the mask of resolved ones."""
    atom = np.where(aatype == RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"])
    residue = np.arange(len(aatype))
    return positions[residue, atom], mask[residue, atom] > 0


def ca_trace(record: ChainRecord) -> np.ndarray:
    """`f64[L, 3]` CA atoms in ångström, NaN where there is none."""
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return np.full([record.num_res, 3], np.nan)
    ca = ATOM_ORDER["CA"]
    resolved = record.all_atom_mask[:, ca] > 0
    return np.where(resolved[:, None], record.all_atom_positions[:, ca].astype(float), np.nan)


def superposed(
    moving: np.ndarray, fixed: np.ndarray, carried: np.ndarray | None = None
) -> np.ndarray:
    """`[n, 3]` points rotated and shifted onto others, pair by pair, without a mirror (Kabsch).

    With `carried`, `[..., 3]`, these points are moved instead.
    """
    rotation, shift = superposition(moving, fixed)
    moved: np.ndarray = (moving if carried is None else carried) @ rotation + shift
    return moved


def superposition(moving: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotation `[3, 3]` and shift `[3]` of points `[n, 3]` onto others (Kabsch):
    `moving @ rotation + shift`."""
    moving, fixed = moving.astype(float), fixed.astype(float)
    centre, target = moving.mean(axis=0), fixed.mean(axis=0)
    u, _, vt = np.linalg.svd((moving - centre).T @ (fixed - target))
    mirror = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt)) or 1.0])
    rotation: np.ndarray = u @ mirror @ vt
    return rotation, target - centre @ rotation


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """First and last-plus-one index of every run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags.astype(bool), [False]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def thinned(values: np.ndarray, limit: int) -> np.ndarray:
    """At most `limit` of the values, evenly spread, with the first and the last; 0: all."""
    if not limit or len(values) <= limit:
        return values
    return np.take(values, np.linspace(0, len(values) - 1, limit).round().astype(int))

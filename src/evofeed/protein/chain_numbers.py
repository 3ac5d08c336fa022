"""Summaries of a chain for plots, as plain arrays: coverage, identity, distances, a trace."""

from __future__ import annotations

import numpy as np

from evofeed.protein.chain_record import ChainRecord
from evofeed.protein.residues import ATOM_ORDER, GAP, RESTYPES


def msa_coverage(record: ChainRecord) -> tuple[np.ndarray, np.ndarray]:
    """Rows that cover each residue `i64[L]`, and each row's identity to the query `f64[N]`.

    The identity counts the residues that a row covers, so a short hit may be identical.
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
    """CB atoms, of glycine CA, `[L, 3]` of `[L, 37, 3]`, and `bool[L]` which are resolved."""
    atom = np.where(aatype == RESTYPES.index("G"), ATOM_ORDER["CA"], ATOM_ORDER["CB"])
    at = np.arange(len(aatype))
    return positions[at, atom], mask[at, atom] > 0


def ca_trace(record: ChainRecord) -> np.ndarray:
    """`f64[L, 3]` CA atoms in ångström, NaN where there is none."""
    if record.all_atom_positions is None or record.all_atom_mask is None:
        return np.full([record.num_res, 3], np.nan)
    ca = ATOM_ORDER["CA"]
    known = record.all_atom_mask[:, ca] > 0
    return np.where(known[:, None], record.all_atom_positions[:, ca].astype(float), np.nan)


def superposed(
    moving: np.ndarray, fixed: np.ndarray, carried: np.ndarray | None = None
) -> np.ndarray:
    """`[n, 3]` points turned and moved onto others, pair by pair, without a mirror (Kabsch).

    With `carried`, `[..., 3]`, these are moved in their place.
    """
    turn, shift = superposition(moving, fixed)
    moved: np.ndarray = (moving if carried is None else carried) @ turn + shift
    return moved


def superposition(moving: np.ndarray, fixed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`[3, 3]` and `[3]` that put points `[n, 3]` onto others: `moving @ turn + shift` (Kabsch)."""
    moving, fixed = moving.astype(float), fixed.astype(float)
    centre, goal = moving.mean(axis=0), fixed.mean(axis=0)
    u, _, vt = np.linalg.svd((moving - centre).T @ (fixed - goal))
    mirror = np.diag([1.0, 1.0, np.sign(np.linalg.det(u @ vt)) or 1.0])
    turn: np.ndarray = u @ mirror @ vt
    return turn, goal - centre @ turn


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """First and last-plus-one index of every run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags.astype(bool), [False]])))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def thinned(values: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the values, evenly spread, the first and the last kept; 0: all."""
    if not most or len(values) <= most:
        return values
    at = np.linspace(0, len(values) - 1, most).round().astype(int)
    return np.take(values, at)

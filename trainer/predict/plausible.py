"""Whether a predicted structure can be a protein: bonded CA atoms, and room for all of them.

A model that has learnt little puts all atoms into one point, and its pLDDT does not say so.
"""

from __future__ import annotations

from typing import Final

import numpy as np

BOND: Final = (2.5, 4.5)
"""Distances of consecutive CA atoms, ångström: 2.9 across a cis peptide, 3.8 across a trans one."""
_BONDED: Final = 0.9  # share of neighbours that must be within BOND
_NEAR: Final = 2.0  # ångström; CA atoms of residues that are not neighbours never come so near
_CROWDED: Final = 0.05  # share of residues that may be


def implausible(ca: np.ndarray, residue_index: np.ndarray, chain: np.ndarray) -> str:
    """What no protein has, in one sentence; empty for a structure that may be one.

    Of CA atoms `[L, 3]` in ångström; indices of neighbours in a chain differ by one, `[L]`.
    """
    joined = (np.diff(residue_index) == 1) & (np.diff(chain) == 0)
    bonds = np.linalg.norm(np.diff(ca, axis=0), axis=1)[joined]
    if not len(bonds):
        return ""
    median, share = float(np.median(bonds)), float(((bonds > BOND[0]) & (bonds < BOND[1])).mean())
    if median < BOND[0] / 2:
        return (
            f"collapsed: consecutive CA atoms are {median:.2f} Å apart (median), 3.8 in a protein; "
            "train longer or give other weights"
        )
    if share < _BONDED:
        return (
            f"physically impossible: only {share:.0%} of consecutive CA atoms are "
            f"{BOND[0]} to {BOND[1]} Å apart; train longer or give other weights"
        )
    if (crowded := _crowded(ca, residue_index, chain)) > _CROWDED:
        return (
            f"physically impossible: {crowded:.0%} of residues have another's CA within {_NEAR} Å; "
            "train longer or give other weights"
        )
    return ""


def _crowded(ca: np.ndarray, residue_index: np.ndarray, chain: np.ndarray) -> float:
    """Share of residues with a CA atom of another, not its neighbour, nearer than any comes."""
    count = 0
    for i in range(len(ca)):  # row by row: a long chain's matrix does not fit
        near = np.linalg.norm(ca - ca[i], axis=1) < _NEAR
        near &= (np.abs(residue_index - residue_index[i]) > 1) | (chain != chain[i])
        count += bool(near.any())
    return count / len(ca)

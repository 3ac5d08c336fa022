"""Plausibility of a predicted structure: CA distances of bonded residues, and clashes.

A model that has learnt little puts all atoms into one point, and its pLDDT does not show it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

BOND: Final = (2.5, 4.5)
"""Distances of consecutive CA atoms, ångström: 2.9 across a cis peptide, 3.8 across a trans one."""
_BONDED: Final = 0.9  # share of consecutive CA atoms that must be within BOND
_CLASH: Final = 2.0  # ångström; CA atoms of non-consecutive residues are never so close
_CLASHING: Final = 0.05  # share of residues that may clash


def implausible(ca: np.ndarray, residue_index: np.ndarray, chain: np.ndarray) -> str:
    """A sentence on why the structure cannot be a protein; empty if it may be one.

    Of CA atoms `[L, 3]` in ångström; indices `[L]` of consecutive residues differ by one.
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
    if (clashing := _clashing_share(ca, residue_index, chain)) > _CLASHING:
        return (
            f"physically impossible: {clashing:.0%} of residues have another's CA within "
            f"{_CLASH} Å; train longer or give other weights"
        )
    return ""


def _clashing_share(ca: np.ndarray, residue_index: np.ndarray, chain: np.ndarray) -> float:
    """Share of residues whose CA atom clashes with that of a non-consecutive residue."""
    count = 0
    for i in range(len(ca)):  # row by row: a long chain's matrix does not fit
        close = np.linalg.norm(ca - ca[i], axis=1) < _CLASH
        close &= (np.abs(residue_index - residue_index[i]) > 1) | (chain != chain[i])
        count += bool(close.any())
    return count / len(ca)

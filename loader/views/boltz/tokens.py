"""The token table of a Boltz entry, as its crop and features read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Int
from evofeed.loader.views.entry_view import EntryView


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Columns that more than one step reads; N tokens of the valid chains, in their order."""

    chain: Int[np.ndarray, " N"]
    residue: Int[np.ndarray, " N"]
    """Number of the residue in its chain (`residue_index`)."""
    atom_num: Int[np.ndarray, " N"]
    center_coords: Float[np.ndarray, "N 3"]
    resolved: Bool[np.ndarray, " N"]
    chain_start: Int[np.ndarray, " N"]
    """First token of the token's chain."""
    chain_stop: Int[np.ndarray, " N"]
    """Token after the last of the token's chain."""


def tokens_of(view: EntryView) -> Tokens:
    """The tokens of a whole entry."""
    chain = view.token_chain()
    return Tokens(
        chain,
        view.residue_index[view.token_residue],
        view.token_atoms,
        view.token_position().astype(np.float32, copy=False),
        view.token_resolved,
        np.searchsorted(chain, chain, "left"),
        np.searchsorted(chain, chain, "right"),
    )

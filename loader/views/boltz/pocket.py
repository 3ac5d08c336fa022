"""Which tokens of a Boltz sample are given as binder and pocket."""

from __future__ import annotations

from typing import Final

import numpy as np

from evofeed.base.shapes import Int, UInt8
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.draws import BoltzDraws
from evofeed.loader.views.entry_view import ChainType, EntryView

UNSELECTED: Final = 1
POCKET: Final = 2
BINDER: Final = 3


def pocket(
    view: EntryView, crop: Int[np.ndarray, " N"], draws: BoltzDraws, config: BoltzConfig
) -> UInt8[np.ndarray, " N"]:
    """0 unspecified, 1 unselected, 2 pocket, 3 binder.

    The binder is a ligand of the crop, a chain if there is none; a pocket's tokens are resolved
    polymer tokens with an atom nearer to it than `config.pocket_cutoff`. Absent atoms count, at
    the origin, as they do upstream.
    """
    codes = np.zeros(len(crop), np.uint8)
    if not config.pocket_prob or not draws.pocket(config.pocket_prob):
        return codes
    chain = view.residue_chain()[view.token_residue[crop]]
    ligand = view.chain_type[chain] == ChainType.LIGAND
    binder = chain == draws.binder(np.unique(chain[ligand] if ligand.any() else chain))
    others = np.flatnonzero(~ligand & ~binder & view.token_resolved[crop])
    near = others[_nearest(view, crop[others], crop[binder], config.pocket_cutoff)]
    if not len(near):
        return codes
    codes[:] = UNSELECTED
    codes[binder] = BINDER
    if config.pocket_geometric > 0:
        size = min(draws.pocket_size(config.pocket_geometric) + 1, len(near))
        near = draws.pocket_tokens(near, size)
    codes[near] = POCKET
    return codes


def _nearest(
    view: EntryView, tokens: Int[np.ndarray, " n"], binder: Int[np.ndarray, " b"], cutoff: float
) -> np.ndarray:
    """Whether a token has an atom nearer than `cutoff` to one of the binder's."""
    target = view.atom_position[view.atoms_of(binder)]
    target = target.astype(np.float32)
    counts = view.token_atoms[tokens]
    atoms = view.atom_position[view.atoms_of(tokens)].astype(np.float32)
    owner = np.repeat(np.arange(len(tokens)), counts)
    low, high = target.min(0) - cutoff - 1, target.max(0) + cutoff + 1
    inside = np.flatnonzero(((atoms > low) & (atoms < high)).all(1))
    near = np.zeros(len(tokens), np.bool_)
    for rows in np.array_split(inside, max(1, len(inside) * len(target) // 200_000)):
        step = atoms[rows, None] - target[None]
        step *= step
        square = step[..., 0] + step[..., 1]
        square += step[..., 2]
        near[owner[rows[(np.sqrt(square) < cutoff).any(1)]]] = True
    return near

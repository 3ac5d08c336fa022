"""Tokens of a Boltz sample, and its binder and pocket.

A crop consists of neighbourhoods around the tokens nearest to a drawn one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, no_type_check

import numpy as np
from numba import njit

from evofeed.base.shapes import Float, Int, UInt8
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws
from evofeed.loader.views.config import BoltzConfig
from evofeed.loader.views.crop import Crop
from evofeed.loader.views.entry_view import ChainType, EntryView

_INTERFACE: Final = (15.0, 20.0)
"""Distance of the tokens of an interface, ångström; the second if none is nearer."""
_UNSELECTED: Final = 1
_POCKET: Final = 2
_BINDER: Final = 3


def crop_tokens(
    view: EntryView, datapoint: Sequence[int], draws: SampleDraws, config: BoltzConfig
) -> Int[np.ndarray, " C"]:
    """Tokens of the crop, ascending.

    It grows from a token of the datapoint's chain; for an interface from one near the other chain.

    Raises:
        ValueError: no token is resolved, or no pair of an interface is within 20 Å.
    """
    half = draws.integer(Purpose.NEIGHBORHOOD, config.max_neighborhood // 2 + 1)
    chain = view.token_chain()
    center = view.token_position().astype(np.float32, copy=False)
    resolved = np.flatnonzero(view.token_resolved)
    if not len(resolved):
        raise ValueError("no token of the entry is resolved: leave the entry out")
    candidates = _candidates(chain, center, resolved, datapoint)
    query = draws.choice(Purpose.QUERY_TOKEN, candidates)
    step = center[resolved] - center[query]
    distance = np.sqrt((step * step).sum(1, dtype=np.float32))
    order = resolved[np.argsort(distance, kind="stable")]
    taken = grow(
        order, chain, view.residue_index[view.token_residue], view.token_atoms,
        np.searchsorted(chain, chain, "left"), np.searchsorted(chain, chain, "right"),
        2 * half, config.max_tokens, config.max_atoms, config.stop_at_first_overflow,
    )  # fmt: skip
    return np.flatnonzero(taken)


def _candidates(
    chains: Int[np.ndarray, " N"],
    center: Float[np.ndarray, "N 3"],
    resolved: Int[np.ndarray, " R"],
    datapoint: Sequence[int],
) -> Int[np.ndarray, " Q"]:
    token_chain = chains[resolved]
    sides = [resolved[token_chain == chain] for chain in datapoint]
    if len(sides) == 1 or not all(len(side) for side in sides):
        tokens = np.concatenate(sides)
        return tokens if len(tokens) else resolved
    first, second = (center[side].astype(np.float64) for side in sides)
    square = ((first[:, None] - second[None]) ** 2).sum(-1)
    for limit in _INTERFACE:
        near = np.sqrt(square) < limit
        if near.any():
            return np.concatenate([sides[0][near.any(1)], sides[1][near.any(0)]])
    raise ValueError(
        f"chains {datapoint[0]} and {datapoint[1]} have no tokens within {_INTERFACE[1]:.0f} Å"
    )


@njit(cache=True, nogil=True)
@no_type_check
def grow(
    order: Any, chain: Any, residue: Any, atoms: Any, chain_start: Any, chain_stop: Any,
    neighborhood: Any, max_tokens: Any, max_atoms: Any, stop: Any,
) -> Any:  # fmt: skip
    """Mask of the crop's tokens, `bool[n]`. `no_type_check` keeps shape checks from wrapping it.

    Neighbourhoods of `order`'s tokens are added while they fit: the whole chain if it has at most
    `neighborhood` tokens, else residues on both sides up to that number. A chain's tokens are
    `chain_start` to `chain_stop`, its residues ascend.
    """
    taken = np.zeros(len(chain), np.bool_)
    num_tokens = 0
    num_atoms = 0
    for token in order:
        first = chain_start[token]
        last = chain_stop[token]
        low = first
        high = last
        if last - first > neighborhood:
            low = token
            while low > first and residue[low - 1] == residue[token]:
                low -= 1
            high = token + 1
            while high < last and residue[high] == residue[token]:
                high += 1
            step = 0
            while high - low < neighborhood:
                step += 1
                while low > first and residue[low - 1] >= residue[token] - step:
                    low -= 1
                while high < last and residue[high] <= residue[token] + step:
                    high += 1
        added = 0
        added_atoms = 0
        for row in range(low, high):
            if not taken[row]:
                added += 1
                added_atoms += atoms[row]
        if added > max_tokens - num_tokens or num_atoms + added_atoms > max_atoms:
            if stop:
                break
            continue
        for row in range(low, high):
            taken[row] = True
        num_tokens += added
        num_atoms += added_atoms
    return taken


def pocket(
    view: EntryView, crop: Crop, draws: SampleDraws, config: BoltzConfig
) -> UInt8[np.ndarray, " N"]:
    """Codes: 0 unspecified, 1 unselected, 2 pocket, 3 binder.

    The binder is a ligand of the crop, or any chain if the crop has no ligand. The pocket's tokens
    are resolved polymer tokens with an atom nearer to it than `config.pocket_cutoff`. Absent atoms
    count, at the origin, as in Boltz.
    """
    codes = np.zeros(len(crop), np.uint8)
    if not config.pocket_prob or not draws.bernoulli(Purpose.POCKET, config.pocket_prob):
        return codes
    chain, token = crop.chain, crop.token
    ligand = view.chain_type[chain] == ChainType.LIGAND
    chains = np.unique(chain[ligand] if ligand.any() else chain)
    binder = chain == draws.choice(Purpose.BINDER, chains)
    others = np.flatnonzero(~ligand & ~binder & view.token_resolved[token])
    near = others[_atoms_near(view, token[others], token[binder], config.pocket_cutoff)]
    if not len(near):
        return codes
    codes[:] = _UNSELECTED
    codes[binder] = _BINDER
    if config.pocket_geometric > 0:
        size = min(draws.geometric(Purpose.POCKET_SIZE, config.pocket_geometric) + 1, len(near))
        near = draws.subset(Purpose.POCKET_TOKENS, near, size)
    codes[near] = _POCKET
    return codes


def _atoms_near(
    view: EntryView, tokens: Int[np.ndarray, " n"], binder: Int[np.ndarray, " b"], cutoff: float
) -> np.ndarray:
    """True for tokens with an atom nearer than `cutoff` to an atom of the binder."""
    target = view.atom_position[view.atoms_of(binder)]
    target = target.astype(np.float32)
    counts = view.token_atoms[tokens]
    atoms = view.atom_position[view.atoms_of(tokens)].astype(np.float32)
    owner = np.repeat(np.arange(len(tokens)), counts)
    low, high = target.min(0) - cutoff - 1, target.max(0) + cutoff + 1
    inside = np.flatnonzero(((atoms > low) & (atoms < high)).all(1))
    near = np.zeros(len(tokens), np.bool_)
    for chunk in np.array_split(inside, max(1, len(inside) * len(target) // 200_000)):
        step = atoms[chunk, None] - target[None]
        step *= step
        square = step[..., 0] + step[..., 1]
        square += step[..., 2]
        near[owner[chunk[(np.sqrt(square) < cutoff).any(1)]]] = True
    return near

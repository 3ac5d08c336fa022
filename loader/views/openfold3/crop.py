"""Which tokens of an entry a sample of OpenFold3 keeps.

First chains, where there are too many, then tokens. Distances are between token centres, double
precision; equal ones stand in the order of their tokens. Source: AF3 SI 2.5.4 and 2.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, Strategy, contiguous_runs
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import ChainType, EntryView, only_whole
from evofeed.protein.interfaces import near_other_chains


class Kept(NamedTuple):
    """Tokens of a sample, and the chains of the entry that its labels may come from."""

    tokens: Integer[np.ndarray, " T"]
    """Rows of `EntryView`'s tokens, ascending."""
    chains: Bool[np.ndarray, " C"]
    """Chains that the chain crop left."""
    strategy: Strategy


def crop_entry(
    view: EntryView, datapoint: tuple[int, ...], draws: SampleDraws, config: OpenFold3Config
) -> Kept:
    """The tokens of a sample.

    Raises:
        ValueError: no token of the entry is resolved, and a centre is asked for.
    """
    tokens = Tokens.of(view)
    chains = _crop_chains(view, tokens, datapoint, draws, config)
    there = chains[tokens.chain]
    left = np.flatnonzero(there)
    if len(left) <= config.token_budget:
        return Kept(left, chains, Strategy.WHOLE)
    strategy = Strategy(draws.strategy(config.crop_weights))
    if strategy is Strategy.CONTIGUOUS:
        return Kept(_contiguous(view, tokens.chain, left, draws, config), chains, strategy)
    resolved = np.flatnonzero(there & tokens.resolved)
    if not len(resolved):
        raise ValueError(f"{view.entry}: no token is resolved, so no crop has a centre")
    preferred = _preferred(tokens, resolved, datapoint, config)
    if len(datapoint) == 1 and strategy is Strategy.SPATIAL_INTERFACE:
        near = tokens.near(preferred, resolved, config.interface_distance)
        preferred = near if len(near) else preferred
    centre = draws.choice(Purpose.CROP_CENTRE, preferred, again=True)
    order = np.argsort(tokens.distances(centre, resolved), kind="stable")
    return Kept(np.sort(resolved[order[: config.token_budget]]), chains, strategy)


def _preferred(
    tokens: Tokens, resolved: np.ndarray, datapoint: tuple[int, ...], config: OpenFold3Config
) -> Integer[np.ndarray, " p"]:
    """Resolved tokens of a chain, or those of two that are near the other's; all that are resolved
    if the chains have none."""
    own = resolved[np.isin(tokens.chain[resolved], datapoint)]
    own = own if len(own) else resolved
    near = tokens.near(own, own, config.interface_distance) if len(datapoint) == 2 else own
    return near if len(near) else own


def _crop_chains(
    view: EntryView,
    tokens: Tokens,
    datapoint: tuple[int, ...],
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Bool[np.ndarray, " C"]:
    """The polymers nearest to a token of the datapoint, ligands beside them, the datapoint."""
    ligand = view.chain_type == ChainType.LIGAND
    if config.max_chains is None or np.sum(~ligand) <= config.max_chains:
        return np.ones(view.num_chains, bool)
    resolved = np.flatnonzero(tokens.resolved)
    preferred = _preferred(tokens, resolved, datapoint, config)
    centre = draws.choice(Purpose.CROP_CENTRE, preferred, again=True)
    polymers = resolved[~ligand[tokens.chain[resolved]]]
    order = np.argsort(tokens.distances(centre, polymers), kind="stable")
    sorted_chains = tokens.chain[polymers][order]
    _, first = np.unique(sorted_chains, return_index=True)
    kept = np.zeros(view.num_chains, bool)
    kept[sorted_chains[np.sort(first)[: config.max_chains]]] = True
    kept |= _ligands_near(view, ligand, kept, config.ligand_distance)
    kept[list(datapoint)] = True
    return kept


def _ligands_near(
    view: EntryView, ligand: np.ndarray, kept: np.ndarray, distance: float
) -> Bool[np.ndarray, " C"]:
    """Ligand chains with an atom near one of the chains kept."""
    chain = np.repeat(np.arange(view.num_chains), np.diff(view.residue_atom[view.chain_residue]))
    seen = view.atom_present
    targets = np.flatnonzero(seen & kept[chain])
    corner = view.atom_position[targets]
    points = np.flatnonzero(seen & ligand[chain])
    # Most of a large assembly is far from its chains kept: a box spares the distances.
    low, high = corner.min(0) - distance - 1, corner.max(0) + distance + 1
    where = view.atom_position[points]
    points = points[((where >= low) & (where <= high)).all(1)]
    near = near_other_chains(
        view.atom_position[points], chain[points], corner, chain[targets], distance
    )
    found = np.zeros(view.num_chains, bool)
    found[chain[points[near]]] = True
    return found


def _contiguous(
    view: EntryView,
    chain: np.ndarray,
    left: np.ndarray,
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Integer[np.ndarray, " T"]:
    """A run of tokens of each chain, chains in random order; some get none."""
    chains, start, length = np.unique(chain[left], return_index=True, return_counts=True)
    by_name = np.argsort(view.chain_name[chains], kind="stable")
    runs = contiguous_runs(length[by_name].tolist(), config.token_budget, draws)
    places = [start[by_name[number]] + first + np.arange(size) for number, first, size in runs]
    tokens: np.ndarray = left[np.sort(np.concatenate(places))]
    if config.ligands_cut_anywhere:
        return tokens
    kept = only_whole(view.residue_component[view.token_residue], tokens)
    return kept if len(kept) else tokens

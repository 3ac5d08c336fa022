"""Chain crop and token crop of an OpenFold3 sample.

Distances are between token centres, in double precision; ties are in token order.
Source: AF3 SI 2.5.4 and 2.7.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from evofeed.base.shapes import Bool, Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, Strategy, contiguous_runs
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import ChainType, EntryView, complete_groups
from evofeed.protein.interfaces import near_other_chains


class EntryCrop(NamedTuple):
    """Tokens of a sample, and the chains of the entry that its labels may come from."""

    tokens: Integer[np.ndarray, " T"]
    """Rows of `EntryView`'s tokens, ascending."""
    chains: Bool[np.ndarray, " C"]
    """Chains retained by the chain crop."""
    strategy: Strategy


def crop_entry(
    view: EntryView, datapoint: tuple[int, ...], draws: SampleDraws, config: OpenFold3Config
) -> EntryCrop:
    """The tokens of a sample.

    Raises:
        ValueError: no token of the entry is resolved, and the crop needs a centre.
    """
    tokens = Tokens.of(view)
    chains = _crop_chains(view, tokens, datapoint, draws, config)
    in_chains = chains[tokens.chain]
    available = np.flatnonzero(in_chains)
    if len(available) <= config.token_budget:
        return EntryCrop(available, chains, Strategy.WHOLE)
    strategy = Strategy(draws.crop_strategy(config.crop_weights))
    if strategy is Strategy.CONTIGUOUS:
        runs = _contiguous(view, tokens.chain, available, draws, config)
        return EntryCrop(runs, chains, strategy)
    resolved = np.flatnonzero(in_chains & tokens.resolved)
    if not len(resolved):
        raise ValueError(f"{view.entry}: no token is resolved, so no crop has a centre")
    preferred = _preferred(tokens, resolved, datapoint, config)
    if len(datapoint) == 1 and strategy is Strategy.SPATIAL_INTERFACE:
        near = tokens.near(preferred, resolved, config.interface_distance)
        preferred = near if len(near) else preferred
    centre = draws.choice(Purpose.CROP_CENTRE, preferred, per_call=True)
    order = np.argsort(tokens.distances(centre, resolved), kind="stable")
    return EntryCrop(np.sort(resolved[order[: config.token_budget]]), chains, strategy)


def _preferred(
    tokens: Tokens, resolved: np.ndarray, datapoint: tuple[int, ...], config: OpenFold3Config
) -> Integer[np.ndarray, " p"]:
    """Resolved tokens of the datapoint's chain, or those of two chains near the other chain.

    All resolved tokens where the chains have none.
    """
    candidates = resolved[np.isin(tokens.chain[resolved], datapoint)]
    candidates = candidates if len(candidates) else resolved
    if len(datapoint) != 2:
        return candidates
    near = tokens.near(candidates, candidates, config.interface_distance)
    return near if len(near) else candidates


def _crop_chains(
    view: EntryView,
    tokens: Tokens,
    datapoint: tuple[int, ...],
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Bool[np.ndarray, " C"]:
    """The polymers nearest to a token of the datapoint, ligands near them, and the datapoint."""
    ligand = view.chain_type == ChainType.LIGAND
    if config.max_chains is None or np.sum(~ligand) <= config.max_chains:
        return np.ones(view.num_chains, bool)
    resolved = np.flatnonzero(tokens.resolved)
    preferred = _preferred(tokens, resolved, datapoint, config)
    centre = draws.choice(Purpose.CROP_CENTRE, preferred, per_call=True)
    polymers = resolved[~ligand[tokens.chain[resolved]]]
    order = np.argsort(tokens.distances(centre, polymers), kind="stable")
    sorted_chains = tokens.chain[polymers][order]
    _, first = np.unique(sorted_chains, return_index=True)
    retained = np.zeros(view.num_chains, bool)
    retained[sorted_chains[np.sort(first)[: config.max_chains]]] = True
    retained |= _ligands_near(view, ligand, retained, config.ligand_distance)
    retained[list(datapoint)] = True
    return retained


def _ligands_near(
    view: EntryView, ligand: np.ndarray, chains: np.ndarray, distance: float
) -> Bool[np.ndarray, " C"]:
    """Ligand chains with an atom near a retained chain."""
    chain = np.repeat(np.arange(view.num_chains), np.diff(view.residue_atom[view.chain_residue]))
    present = view.atom_present
    targets = np.flatnonzero(present & chains[chain])
    target_xyz = view.atom_position[targets]
    points = np.flatnonzero(present & ligand[chain])
    # Most of a large assembly is far from the retained chains: a bounding box spares distances.
    low, high = target_xyz.min(0) - distance - 1, target_xyz.max(0) + distance + 1
    xyz = view.atom_position[points]
    points = points[((xyz >= low) & (xyz <= high)).all(1)]
    near = near_other_chains(
        view.atom_position[points], chain[points], target_xyz, chain[targets], distance
    )
    near_chains = np.zeros(view.num_chains, bool)
    near_chains[chain[points[near]]] = True
    return near_chains


def _contiguous(
    view: EntryView,
    chain: np.ndarray,
    available: np.ndarray,
    draws: SampleDraws,
    config: OpenFold3Config,
) -> Integer[np.ndarray, " T"]:
    """A contiguous run of tokens of each chain, chains in random order; some have none."""
    chains, start, length = np.unique(chain[available], return_index=True, return_counts=True)
    by_name = np.argsort(view.chain_name[chains], kind="stable")
    runs = contiguous_runs(length[by_name].tolist(), config.token_budget, draws)
    indices = [start[by_name[number]] + first + np.arange(size) for number, first, size in runs]
    tokens: np.ndarray = available[np.sort(np.concatenate(indices))]
    if config.ligands_cut_anywhere:
        return tokens
    complete = complete_groups(view.residue_component[view.token_residue], tokens)
    return complete if len(complete) else tokens

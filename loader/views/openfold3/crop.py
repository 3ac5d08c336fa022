"""Which tokens of an entry a sample of OpenFold3 keeps.

First chains, where there are too many, then tokens. Distances are between token centres, double
precision; equal ones stand in the order of their tokens. Source: AF3 SI 2.5.4 and 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.crop_draws import Strategy, contiguous_runs
from evofeed.loader.views.config import OpenFold3Config
from evofeed.loader.views.draws import OpenFold3Draws
from evofeed.loader.views.entry_view import ChainType, EntryView, only_whole
from evofeed.protein.interfaces import near_other_chains


@dataclass(frozen=True, slots=True)
class Crop:
    """Tokens of a sample, and the chains of the entry that its labels may come from."""

    tokens: Integer[np.ndarray, " T"]
    """Rows of `EntryView`'s tokens, ascending."""
    chains: Bool[np.ndarray, " C"]
    """Chains that the chain crop left."""
    strategy: Strategy


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of the entry as the crop looks at them; `resolved` are rows."""

    chain: Integer[np.ndarray, " N"]
    position: Float[np.ndarray, "N 3"]
    resolved: Integer[np.ndarray, " r"]

    def of(self, datapoint: tuple[int, ...], distance: float) -> Integer[np.ndarray, " p"]:
        """Resolved tokens of a chain, or those of two that are near the other's; all resolved ones
        if the chains have none."""
        there = self.resolved[np.isin(self.chain[self.resolved], datapoint)]
        there = there if len(there) else self.resolved
        return self.near(there, there, distance) if len(datapoint) == 2 else there

    def near(
        self, tokens: Integer[np.ndarray, " p"], others: Integer[np.ndarray, " o"], distance: float
    ) -> Integer[np.ndarray, " q"]:
        """Those near one of the others that is of another chain; all of them if none is."""
        near = near_other_chains(
            self.position[tokens],
            self.chain[tokens],
            self.position[others],
            self.chain[others],
            distance,
        )
        return tokens[near] if near.any() else tokens

    def distances(self, centre: int, tokens: Integer[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Ångström from one token to these."""
        step = self.position[tokens] - self.position[centre]
        length: np.ndarray = np.sqrt(step[:, 0] ** 2 + step[:, 1] ** 2 + step[:, 2] ** 2)
        return length


def crop_entry(
    view: EntryView, datapoint: tuple[int, ...], draws: OpenFold3Draws, config: OpenFold3Config
) -> Crop:
    """The tokens of a sample.

    Raises:
        ValueError: no token of the entry is resolved, and a centre is asked for.
    """
    chain = view.token_chain()
    position = view.token_position().astype(np.float64)
    seen = np.flatnonzero(view.token_resolved)
    chains = _crop_chains(view, _Tokens(chain, position, seen), datapoint, draws, config)
    there = chains[chain]
    left = np.flatnonzero(there)
    if len(left) <= config.token_budget:
        return Crop(left, chains, Strategy.WHOLE)
    strategy = Strategy(draws.strategy(config.crop_weights))
    if strategy is Strategy.CONTIGUOUS:
        return Crop(_contiguous(view, chain, left, draws, config), chains, strategy)
    resolved = np.flatnonzero(there & view.token_resolved)
    if not len(resolved):
        raise ValueError(f"{view.entry}: no token is resolved, so no crop has a centre")
    tokens = _Tokens(chain, position, resolved)
    preferred = tokens.of(datapoint, config.interface_distance)
    if len(datapoint) == 1 and strategy is Strategy.SPATIAL_INTERFACE:
        preferred = tokens.near(preferred, resolved, config.interface_distance)
    centre = int(preferred[draws.centre(preferred)])
    order = np.argsort(tokens.distances(centre, resolved), kind="stable")
    return Crop(np.sort(resolved[order[: config.token_budget]]), chains, strategy)


def _crop_chains(
    view: EntryView,
    tokens: _Tokens,
    datapoint: tuple[int, ...],
    draws: OpenFold3Draws,
    config: OpenFold3Config,
) -> Bool[np.ndarray, " C"]:
    """The polymers nearest to a token of the datapoint, ligands beside them, the datapoint."""
    ligand = view.chain_type == ChainType.LIGAND
    if config.max_chains is None or np.sum(~ligand) <= config.max_chains:
        return np.ones(view.num_chains, bool)
    preferred = tokens.of(datapoint, config.interface_distance)
    centre = int(preferred[draws.centre(preferred)])
    polymers = tokens.resolved[~ligand[tokens.chain[tokens.resolved]]]
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
    draws: OpenFold3Draws,
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

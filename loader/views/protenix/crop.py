"""Token crop of a Protenix sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, Strategy
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import complete_groups
from evofeed.protein.entry_record import run_starts


def crop_tokens(
    tokens: Tokens, datapoint: Sequence[int], draws: SampleDraws, config: ProtenixConfig
) -> tuple[Integer[np.ndarray, " T"], Strategy]:
    """Indices of the tokens of the crop, ascending, and the strategy that was drawn.

    Raises:
        ValueError: no token can be a centre.
    """
    if not config.draw_when_it_fits and len(tokens) <= config.crop_size:
        return np.arange(len(tokens)), Strategy.WHOLE
    strategy = Strategy(draws.crop_strategy(config.crop_weights))
    if strategy is Strategy.CONTIGUOUS:
        return _contiguous(tokens, draws, config), strategy
    candidates = _candidates(tokens, datapoint, strategy, config)
    centre = draws.choice(Purpose.CROP_CENTRE, candidates)
    return _nearest(tokens, centre, config), strategy


def _candidates(
    tokens: Tokens, datapoint: Sequence[int], strategy: Strategy, config: ProtenixConfig
) -> Integer[np.ndarray, " n"]:
    """Tokens that may be the centre of a spatial crop: the resolved ones of the datapoint, or
    those at an interface."""
    candidates = np.flatnonzero(tokens.resolved & np.isin(tokens.chain, datapoint))
    if strategy is Strategy.SPATIAL_INTERFACE:
        # Protenix compares in single precision: a distance rounded to the limit is not below it.
        limit = config.interface_distance - np.spacing(np.float32(config.interface_distance)) / 2
        near = tokens.near(candidates, np.flatnonzero(tokens.resolved), float(limit))
        candidates = near if len(near) or len(datapoint) > 1 else candidates
    if not len(candidates):
        names = ", ".join(str(chain) for chain in datapoint)
        raise ValueError(f"chains {names} have no resolved token to centre a spatial crop on")
    return candidates


def _nearest(tokens: Tokens, centre: int, config: ProtenixConfig) -> Integer[np.ndarray, " T"]:
    """The tokens nearest to the centre, without incomplete residues."""
    distance = tokens.distances(centre, np.arange(len(tokens)))
    count = min(config.crop_size, len(tokens))
    if config.biased_distances:
        single = distance.astype(np.float32)
        single[~tokens.resolved] = np.inf
        single += np.arange(len(tokens), dtype=np.float32) * np.float32(1e-3)
        chosen = np.flatnonzero(single <= np.partition(single, count - 1)[count - 1])
        if len(chosen) > count:
            chosen = _smallest_by_torch(single, count)
        if not config.unresolved_fill:
            chosen = chosen[tokens.resolved[chosen]]
    else:
        distance[~tokens.resolved] = np.inf
        count = count if config.unresolved_fill else min(count, int(tokens.resolved.sum()))
        chosen = np.argsort(distance, kind="stable")[:count]
    chosen = np.sort(chosen)
    return complete_groups(tokens.residue, chosen) if config.whole_residues else chosen


def _smallest_by_torch(distance: np.ndarray, count: int) -> Integer[np.ndarray, " T"]:
    """The selection of `torch.topk`, which documents no order of equal (mostly infinite) values."""
    import torch  # the reader does not need it otherwise

    smallest = torch.topk(torch.from_numpy(distance), count, largest=False)
    chosen: np.ndarray = smallest.indices.numpy()
    return chosen


def _contiguous(
    tokens: Tokens, draws: SampleDraws, config: ProtenixConfig
) -> Integer[np.ndarray, " T"]:
    """A contiguous run of tokens of each chain, chains in random order, until the crop is full."""
    _chains, start, lengths = np.unique(tokens.chain, return_index=True, return_counts=True)
    metal = (lengths == 1) & (tokens.atoms[start] == 1) & config.remove_metal
    ends = _ResidueEnds(tokens.residue)
    size, num_tokens = config.crop_size, 0
    remaining = len(tokens) - int(metal.sum())
    runs = []
    for number in draws.chain_order(len(start)):
        if num_tokens >= size:
            break
        if metal[number]:
            continue
        chain_length = int(lengths[number])
        remaining -= chain_length
        min_size = min(chain_length, max(0, size - num_tokens - remaining))
        run_length = draws.integer_between(min_size, min(size - num_tokens, chain_length))
        low = int(start[number]) + draws.integer_between(0, chain_length - run_length)
        high = low + run_length
        if config.whole_residues:
            low, high = ends.align_ends(low, high, min_size, size - num_tokens, draws, config)
        runs.append(np.arange(low, high))
        num_tokens += high - low
    return np.sort(np.concatenate([np.zeros(0, np.int64), *runs]))


class _ResidueEnds:
    """First and last token of every token's residue."""

    def __init__(self, residue: Integer[np.ndarray, " N"]) -> None:
        starts = run_starts(residue)
        stops = np.append(starts[1:], len(residue))
        self.first, self.stop = (np.repeat(bounds, stops - starts) for bounds in (starts, stops))

    def align_ends(
        self,
        low: int,
        high: int,
        min_size: int,
        max_size: int,
        draws: SampleDraws,
        config: ProtenixConfig,
    ) -> tuple[int, int]:
        """The run with its ends at residue ends, `min_size` to `max_size` tokens where possible."""
        if low == high:
            return low, high
        low_cut = self.first[low] != low
        high_cut = self.stop[high - 1] != high
        if low_cut and high_cut:
            low, low_cut = int(self.first[low]), False
        if high_cut:
            left, right = int(self.first[high - 1]), int(self.stop[high - 1])
            chosen = _fitting(left - low, right - low, min_size, max_size, draws)
            if chosen is not None:
                return low, (left, right)[chosen]
            if not config.drop_last:
                return low, min(high, low + max_size)
            high = left
            while high - low > max_size and high > low:
                high = int(self.first[high - 1])
        elif low_cut:
            left, right = int(self.first[low]), int(self.stop[low])
            chosen = _fitting(high - left, high - right, min_size, max_size, draws)
            if chosen is not None:
                return (left, right)[chosen], high
            if config.drop_last:
                low = right
        return low, high


def _fitting(left: int, right: int, min_size: int, max_size: int, draws: SampleDraws) -> int | None:
    """Index of the size within the bounds, drawn if both are; None if neither is."""
    fits = [min_size <= size <= max_size for size in (left, right)]
    if all(fits):
        return draws.integer(Purpose.RESIDUE_SIDE, 2, per_call=True)
    return fits.index(True) if any(fits) else None

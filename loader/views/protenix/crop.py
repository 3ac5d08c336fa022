"""Which tokens of an entry a sample of Protenix keeps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evofeed.base.shapes import Integer
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.sample_draws import SampleDraws, Strategy
from evofeed.loader.views.config import ProtenixConfig
from evofeed.loader.views.crop import Tokens
from evofeed.loader.views.entry_view import only_whole
from evofeed.protein.entry_record import run_starts


def crop_tokens(
    tokens: Tokens, datapoint: Sequence[int], draws: SampleDraws, config: ProtenixConfig
) -> tuple[Integer[np.ndarray, " T"], Strategy]:
    """Places of the kept tokens in their order, ascending, and how they were chosen.

    Raises:
        ValueError: no token can be a centre, or too few atoms of the crop were seen.
    """
    if not config.draw_when_it_fits and len(tokens) <= config.crop_size:
        return np.arange(len(tokens)), Strategy.WHOLE
    strategy = Strategy(draws.strategy(config.crop_weights))
    if strategy is Strategy.CONTIGUOUS:
        return _contiguous(tokens, draws, config), strategy
    candidates = _candidates(tokens, datapoint, strategy, config)
    centre = draws.choice(Purpose.CROP_CENTRE, candidates)
    return _nearest(tokens, centre, config), strategy


def _candidates(
    tokens: Tokens, datapoint: Sequence[int], strategy: Strategy, config: ProtenixConfig
) -> Integer[np.ndarray, " n"]:
    """Resolved tokens of the datapoint, or those at an interface: a spatial crop is around one."""
    own = np.flatnonzero(tokens.resolved & np.isin(tokens.chain, datapoint))
    if strategy is Strategy.SPATIAL_INTERFACE:
        # Protenix compares single precision: what rounds to the limit is not below it.
        limit = config.interface_distance - np.spacing(np.float32(config.interface_distance)) / 2
        near = tokens.near(own, np.flatnonzero(tokens.resolved), float(limit))
        own = near if len(near) or len(datapoint) > 1 else own
    if not len(own):
        names = ", ".join(str(chain) for chain in datapoint)
        raise ValueError(f"chains {names} have no token that a spatial crop can be around")
    return own


def _nearest(tokens: Tokens, centre: int, config: ProtenixConfig) -> Integer[np.ndarray, " T"]:
    """The tokens nearest to one, without residues that are not whole."""
    distance = tokens.distances(centre, np.arange(len(tokens)))
    count = min(config.crop_size, len(tokens))
    if config.biased_distances:
        single = distance.astype(np.float32)
        single[~tokens.resolved] = np.inf
        single += np.arange(len(tokens), dtype=np.float32) * np.float32(1e-3)
        chosen = np.flatnonzero(single <= np.partition(single, count - 1)[count - 1])
        if len(chosen) > count:
            chosen = _as_torch(single, count)
        if not config.unresolved_fill:
            chosen = chosen[tokens.resolved[chosen]]
    else:
        distance[~tokens.resolved] = np.inf
        count = count if config.unresolved_fill else min(count, int(tokens.resolved.sum()))
        chosen = np.argsort(distance, kind="stable")[:count]
    chosen = np.sort(chosen)
    return only_whole(tokens.residue, chosen) if config.whole_residues else chosen


def _as_torch(distance: np.ndarray, count: int) -> Integer[np.ndarray, " T"]:
    """torch's own selection: which of equal ones, infinite most, it takes is its secret."""
    import torch  # the reader has no need of it otherwise

    chosen: np.ndarray = torch.topk(
        torch.from_numpy(distance), count, largest=False
    ).indices.numpy()
    return chosen


def _contiguous(
    tokens: Tokens, draws: SampleDraws, config: ProtenixConfig
) -> Integer[np.ndarray, " T"]:
    """A run of tokens of one chain after another, chains in random order, until they fill it."""
    _chains, start, length = np.unique(tokens.chain, return_index=True, return_counts=True)
    metal = (length == 1) & (tokens.atoms[start] == 1) & config.remove_metal
    ends = _ResidueEnds(tokens.residue)
    size, added = config.crop_size, 0
    remaining = len(tokens) - int(metal.sum())
    runs = []
    for number in draws.chain_order(len(start)):
        if added >= size:
            break
        if metal[number]:
            continue
        here = int(length[number])
        remaining -= here
        least = min(here, max(0, size - added - remaining))
        taken = draws.between(least, min(size - added, here))
        low = int(start[number]) + draws.between(0, here - taken)
        high = low + taken
        if config.whole_residues:
            low, high = ends.whole(low, high, least, size - added, draws, config)
        runs.append(np.arange(low, high))
        added += high - low
    return np.sort(np.concatenate([np.zeros(0, np.int64), *runs]))


class _ResidueEnds:
    """First and last token of every token's residue."""

    def __init__(self, residue: Integer[np.ndarray, " N"]) -> None:
        starts = run_starts(residue)
        stops = np.append(starts[1:], len(residue))
        self.first, self.stop = (np.repeat(ends, stops - starts) for ends in (starts, stops))

    def whole(
        self,
        low: int,
        high: int,
        least: int,
        most: int,
        draws: SampleDraws,
        config: ProtenixConfig,
    ) -> tuple[int, int]:
        """A run whose ends are ends of residues, `least` to `most` tokens where that can be."""
        if low == high:
            return low, high
        low_cut = self.first[low] != low
        high_cut = self.stop[high - 1] != high
        if low_cut and high_cut:
            low, low_cut = int(self.first[low]), False
        if high_cut:
            left, right = int(self.first[high - 1]), int(self.stop[high - 1])
            chosen = _either(left - low, right - low, least, most, draws)
            if chosen is not None:
                return low, (left, right)[chosen]
            if not config.drop_last:
                return low, min(high, low + most)
            high = left
            while high - low > most and high > low:
                high = int(self.first[high - 1])
        elif low_cut:
            left, right = int(self.first[low]), int(self.stop[low])
            chosen = _either(high - left, high - right, least, most, draws)
            if chosen is not None:
                return (left, right)[chosen], high
            if config.drop_last:
                low = right
        return low, high


def _either(left: int, right: int, least: int, most: int, draws: SampleDraws) -> int | None:
    """Which of two sizes: the one within the bounds, drawn if both are; None if neither is."""
    fits = [least <= size <= most for size in (left, right)]
    if all(fits):
        return draws.even(Purpose.RESIDUE_SIDE, 2, again=True)
    return fits.index(True) if any(fits) else None

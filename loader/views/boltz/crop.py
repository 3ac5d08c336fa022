"""Which tokens a Boltz sample has: neighbourhoods around the tokens nearest to a drawn one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from evofeed.base.shapes import Int
from evofeed.loader.views.boltz.config import BoltzConfig
from evofeed.loader.views.boltz.draws import BoltzDraws
from evofeed.loader.views.boltz.growth import grow
from evofeed.loader.views.boltz.tokens import Tokens

_INTERFACE: Final = (15.0, 20.0)
"""Distance of the tokens of an interface, ångström; the second if none is nearer."""


def crop_tokens(
    tokens: Tokens,
    datapoint: Sequence[int],
    draws: BoltzDraws,
    config: BoltzConfig,
) -> Int[np.ndarray, " C"]:
    """Tokens to keep, ascending.

    Args:
        tokens: of the whole entry's valid chains.
        datapoint: a chain whose token is the first, or two whose facing tokens are.
        draws: the random decisions.
        config: sizes and faults.

    Raises:
        ValueError: no token is resolved, or no pair of an interface is within 20 Å.
    """
    half = draws.neighborhood(config.max_neighborhood // 2 + 1)
    resolved = np.flatnonzero(tokens.resolved)
    if not len(resolved):
        raise ValueError("no token of the entry is resolved: leave the entry out")
    candidates = _candidates(tokens, resolved, datapoint)
    query = candidates[draws.query(len(candidates))]
    center = tokens.center_coords
    step = center[resolved] - center[query]
    distance = np.sqrt((step * step).sum(1, dtype=np.float32))
    order = resolved[np.argsort(distance, kind="stable")]
    taken = grow(
        order, tokens.chain, tokens.residue, tokens.atom_num, tokens.chain_start,
        tokens.chain_stop, 2 * half, config.max_tokens, config.max_atoms,
        config.stop_at_first_overflow,
    )  # fmt: skip
    return np.flatnonzero(taken)


def _candidates(
    tokens: Tokens, resolved: Int[np.ndarray, " R"], datapoint: Sequence[int]
) -> Int[np.ndarray, " Q"]:
    of = tokens.chain[resolved]
    sides = [resolved[of == chain] for chain in datapoint]
    if len(sides) == 1 or not all(len(side) for side in sides):
        both = np.concatenate(sides)
        return both if len(both) else resolved
    first, second = (tokens.center_coords[side].astype(np.float64) for side in sides)
    square = ((first[:, None] - second[None]) ** 2).sum(-1)
    for limit in _INTERFACE:
        near = np.sqrt(square) < limit
        if near.any():
            return np.concatenate([sides[0][near.any(1)], sides[1][near.any(0)]])
    raise ValueError(
        f"chains {datapoint[0]} and {datapoint[1]} have no tokens within {_INTERFACE[1]:.0f} Å"
    )

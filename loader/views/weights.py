"""Sampling weights of chains and interfaces in the three projects, and the draw.

A datapoint is a chain of an entry or two chains in contact. Drawing is with replacement. Each
position of an epoch has its own random number, so that it can be drawn without the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from evofeed.base.shapes import Float, Integer, Shaped
from evofeed.loader.counter_rng import Purpose, draws64, stream_key
from evofeed.loader.views.entry_view import ChainType


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightConfig:
    """Factors of a datapoint's weight. Source: AF3 SI 2.5.1, equation 1."""

    protein: float = 3.0
    nucleic: float = 3.0
    ligand: float = 1.0
    chain: float = 0.5
    """Factor of single chains."""
    interface: float = 1.0
    """Factor of interfaces."""


def cluster_sizes(cluster: Integer[np.ndarray, " D"]) -> Integer[np.ndarray, " D"]:
    """Number of datapoints in the cluster of each; chains and interfaces are counted separately,
    so their cluster numbers must differ."""
    _, inverse, counts = np.unique(cluster, return_inverse=True, return_counts=True)
    sizes: np.ndarray = counts[inverse]
    return sizes


def cluster_weights(
    kinds: Integer[np.ndarray, "D 2"],
    sizes: Shaped[np.ndarray, " D"],
    config: WeightConfig | None = None,
) -> Float[np.ndarray, " D"]:
    """Weights of Boltz and OpenFold3, not normalised.

    `kinds` are the `ChainType` of both chains (-1 in the second column for a single chain),
    `sizes` the number of datapoints in the same cluster, as the project counts them.
    """
    config = config or WeightConfig()
    factors = {
        ChainType.PROTEIN: config.protein, ChainType.DNA: config.nucleic,
        ChainType.RNA: config.nucleic, ChainType.LIGAND: config.ligand,
    }  # fmt: skip
    alpha = np.array([*(factors[kind] for kind in ChainType), 0.0])  # the last: no second chain
    beta = np.where(kinds[:, 1] >= 0, config.interface, config.chain)
    weights: np.ndarray = beta / sizes * alpha[kinds].sum(1)
    return weights


_NOT_EMPTY: Final = 1e-9


def pair_weights(
    kinds: Integer[np.ndarray, "D 2"],
    cluster: Integer[np.ndarray, " D"],
    pair: Integer[np.ndarray, " D"],
    config: WeightConfig | None = None,
) -> Float[np.ndarray, " D"]:
    """Weights of Protenix, not normalised.

    Clusters, separate for chains and interfaces, are counted over distinct pairs of entities, and
    copies of a pair share its weight. `pair` numbers the distinct (entry, assembly, entities), with
    entities in either order. For `kinds` see `cluster_weights`.
    """
    _, first = np.unique(np.stack([cluster, pair]), axis=1, return_index=True)
    _, inverse = np.unique(cluster, return_inverse=True)
    distinct = np.bincount(inverse[first], minlength=inverse.max(initial=-1) + 1)[inverse]
    shared = cluster_weights(kinds, distinct + _NOT_EMPTY, config)
    weights: np.ndarray = shared / cluster_sizes(pair)
    return weights


class DatapointDraw:
    """Datapoints drawn with replacement in proportion to their weights."""

    def __init__(self, weights: Float[np.ndarray, " D"]) -> None:
        if not len(weights) or not np.isfinite(weights).all() or weights.min() < 0:
            raise ValueError("weights must be finite, none negative, and at least one")
        self._sum = np.cumsum(weights, dtype=np.float64)
        if not self._sum[-1] > 0:
            raise ValueError("all weights are 0")

    def rows(self, seed: int, epoch: int, start: int, count: int) -> Integer[np.ndarray, " count"]:
        """Datapoints of positions `start .. start + count` of an epoch."""
        bits = draws64(stream_key(seed, epoch, Purpose.DATAPOINT), count, start)
        share = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        rows: np.ndarray = np.searchsorted(self._sum, share * self._sum[-1], side="right")
        return rows

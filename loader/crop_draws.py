"""The random decisions of a crop that several models share, and the crop they make.

AlphaFold-Multimer, OpenFold3 and Protenix choose a way to crop by weights, and cut a run of each
chain, chains in random order. Source: AlphaFold-Multimer, algorithm 1; AF3 SI 2.7.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Float, Integer
from evofeed.loader.counter_rng import Purpose, below, draws64, few_in_order, stream_key


class Strategy(enum.IntEnum):
    """How a crop was made; the first three in the order of a project's `crop_weights`."""

    CONTIGUOUS = 0
    SPATIAL = 1
    SPATIAL_INTERFACE = 2
    WHOLE = 3

    @property
    def is_spatial(self) -> bool:
        """Whether it is around a token."""
        return self in (Strategy.SPATIAL, Strategy.SPATIAL_INTERFACE)


@dataclass(slots=True)
class CounterStream:
    """Decisions as a pure function of a sample's key; a subclass may replay others."""

    key: int
    _cuts: int = 0

    def stream(self, purpose: Purpose, *numbers: int) -> int:
        """Key of the draws for a purpose."""
        return stream_key(self.key, purpose, *numbers)

    def even(self, purpose: Purpose, count: int) -> int:
        """0 to `count - 1`, each as likely."""
        return below(self.stream(purpose), count)

    def strategy(self, weights: Sequence[float]) -> int:
        """Which way to crop, in proportion to the weights, in steps of 2**-31."""
        share = self.even(Purpose.CROP_STRATEGY, 1 << 31) / 2**31
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, share * sums[-1], side="right"))

    def chain_order(self, count: int) -> Sequence[int]:
        """A uniform permutation of the chains."""
        return few_in_order(self.stream(Purpose.CHAIN_ORDER), count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included; each call its own."""
        self._cuts += 1
        return low + below(self.stream(Purpose.CHAIN_CROP), high - low + 1, self._cuts)

    def permutation(
        self, purpose: Purpose, count: int, *numbers: int
    ) -> Integer[np.ndarray, " count"]:
        """`i64[count]`: 0 to `count - 1` in a uniform order."""
        order = draws64(self.stream(purpose, *numbers), count)
        return np.argsort(order, kind="stable")


def contiguous_runs(
    lengths: Sequence[int], budget: int, draws: CounterStream
) -> Iterator[tuple[int, int, int]]:
    """Chain, first place in it and length of a run of each chain, `budget` in all.

    The chains have more than `budget` places together.
    """
    left, remaining = budget, int(sum(lengths))
    for chain in draws.chain_order(len(lengths)):
        length = int(lengths[chain])
        remaining -= length
        size = draws.between(min(length, max(0, left - remaining)), min(left, length))
        left -= size
        yield chain, draws.between(0, length - size), size


def normals(key: int, count: int) -> Float[np.ndarray, " count"]:
    """Standard normals of a stream, `f32`, by the formula of Box and Muller."""
    pairs = (count + 1) // 2
    share = ((draws64(key, 2 * pairs) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(share[:pairs]))
    angle = 2.0 * np.pi * share[pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return both[:count].astype(np.float32)

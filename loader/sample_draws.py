"""The random decisions that a host makes about a sample of several chains, in their order.

They are a pure function of the sample's key. A recording of somebody else's draws is a subclass
that answers from a file, and is replayed through the same plan. AlphaFold-Multimer, OpenFold3 and
Protenix choose a way to crop by weights, and cut a run of each chain, chains in random order.
Source: AlphaFold-Multimer, algorithm 1; AF3 SI 2.7.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.counter_rng import Purpose, below, draws64, small_permutation, stream_key


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
class SampleDraws:
    """Decisions by what they are for. Those made `again` are each call's own."""

    key: int
    _calls: Counter[Purpose] = field(default_factory=Counter)

    def _stream(self, purpose: Purpose, *numbers: int) -> int:
        return stream_key(self.key, purpose, *numbers)

    def _call(self, purpose: Purpose) -> int:
        self._calls[purpose] += 1
        return self._calls[purpose]

    def even(self, purpose: Purpose, count: int, *, again: bool = False) -> int:
        """0 to `count - 1`, each as likely."""
        return below(self._stream(purpose), count, self._call(purpose) if again else 0)

    def choice(
        self, purpose: Purpose, values: Integer[np.ndarray, " n"], *, again: bool = False
    ) -> int:
        """One of these numbers, each as likely."""
        return int(values[self.even(purpose, len(values), again=again)])

    def happens(self, purpose: Purpose, probability: float) -> bool:
        """Whether something of that probability is so, in steps of 2**-31."""
        return self.even(purpose, 1 << 31) < probability * 2**31

    def trials(self, purpose: Purpose, probability: float) -> int:
        """A geometric number, 1 or more: trials up to the first success."""
        if probability >= 1:
            return 1
        draw = (self.even(purpose, 1 << 31) + 0.5) / 2**31
        return 1 + int(math.log(draw) / math.log1p(-probability))

    def order(
        self, purpose: Purpose, count: int, *, again: bool = False
    ) -> Integer[np.ndarray, " count"]:
        """0 to `count - 1` in a uniform order."""
        key = self._stream(purpose, self._call(purpose)) if again else self._stream(purpose)
        return np.argsort(draws64(key, count), kind="stable")

    def some(
        self, purpose: Purpose, values: Integer[np.ndarray, " n"], count: int
    ) -> Integer[np.ndarray, " k"]:
        """So many of these numbers, each once, in a uniform order."""
        chosen: np.ndarray = values[self.order(purpose, len(values))[:count]]
        return chosen

    def part(
        self, purpose: Purpose, count: int, least: int
    ) -> tuple[Integer[np.ndarray, " count"], int]:
        """0 to `count - 1` in a uniform order, and how many to take, `least` to all; each call its
        own."""
        key = self._stream(purpose, self._call(purpose))
        size = least + below(key, count + 1 - least)
        return np.argsort(draws64(key, count, 1), kind="stable"), size

    def strategy(self, weights: Sequence[float]) -> int:
        """Which way to crop, in proportion to the weights, in steps of 2**-31."""
        share = self.even(Purpose.CROP_STRATEGY, 1 << 31) / 2**31
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, share * sums[-1], side="right"))

    def chain_order(self, count: int) -> Sequence[int]:
        """A uniform permutation of the chains."""
        return small_permutation(self._stream(Purpose.CHAIN_ORDER), count)

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included; each call its own."""
        return low + self.even(Purpose.CHAIN_CROP, high - low + 1, again=True)

    def conformers(self, count: int, stored: int) -> Integer[np.ndarray, " count"]:
        """Which of the stored conformers each component of the crop gets."""
        bits = draws64(self._stream(Purpose.CONFORMER), count) >> np.uint64(33)
        return ((bits * np.uint64(stored)) >> np.uint64(31)).astype(np.int64)

    def normal_moves(
        self,
        moved: Bool[np.ndarray, " g"],
        turn: Purpose = Purpose.CONFORMER_ROTATION,
        shift: Purpose = Purpose.CONFORMER_SHIFT,
    ) -> tuple[Float[np.ndarray, "g 3 3"], Float[np.ndarray, "g 3"]]:
        """A rotation and a normal shift, in ångström, of each component, `f32`.

        Also of components that are not moved, whose draws nobody reads.
        """
        shifts = normals(self._stream(shift), 3 * len(moved)).reshape(-1, 3)
        return self._rotations(turn, len(moved)), shifts

    def even_moves(
        self, count: int, most: float
    ) -> tuple[Float[np.ndarray, "count 3 3"], Float[np.ndarray, "count 3"]]:
        """A rotation and a shift, up to `most` along every axis, of each residue, `f64`."""
        bits = draws64(self._stream(Purpose.CONFORMER_SHIFT), 3 * count) >> np.uint64(11)
        shifts = ((bits.astype(np.float64) * 2.0**-52 - 1.0) * most).reshape(-1, 3)
        return self._rotations(Purpose.CONFORMER_ROTATION, count).astype(np.float64), shifts

    def _rotations(self, purpose: Purpose, count: int) -> Float[np.ndarray, "count 3 3"]:
        return rotations(normals(self._stream(purpose), 4 * count).reshape(-1, 4))


def contiguous_runs(
    lengths: Sequence[int], budget: int, draws: SampleDraws
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


def rotations(quaternions: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 3 3"]:
    """Rotation matrices, `f32`, of quaternions of any length; none turns by nothing."""
    r, i, j, k = quaternions.astype(np.float32).T
    s = 2 / np.maximum(r * r + i * i + j * j + k * k, np.float32(1e-24))
    rows = [
        [1 - s * (j * j + k * k), s * (i * j - k * r), s * (i * k + j * r)],
        [s * (i * j + k * r), 1 - s * (i * i + k * k), s * (j * k - i * r)],
        [s * (i * k - j * r), s * (j * k + i * r), 1 - s * (i * i + j * j)],
    ]
    return np.array(rows, np.float32).transpose(2, 0, 1)

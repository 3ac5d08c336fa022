"""Random decisions of the host about a sample of a complex or an entry.

They are a pure function of the sample's key. A subclass may replay the recorded draws of another
implementation through the same plan. AlphaFold-Multimer, OpenFold3 and Protenix draw a crop
strategy by weights; a contiguous crop takes a run of each chain, chains in random order.
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
    """Strategy of a crop; the first three in the order of a project's `crop_weights`."""

    CONTIGUOUS = 0
    SPATIAL = 1
    SPATIAL_INTERFACE = 2
    WHOLE = 3

    @property
    def is_spatial(self) -> bool:
        """True if the crop is around a token."""
        return self in (Strategy.SPATIAL, Strategy.SPATIAL_INTERFACE)


@dataclass(slots=True)
class SampleDraws:
    """Draws by purpose; with `per_call`, each call for a purpose has its own stream."""

    key: int
    _calls: Counter[Purpose] = field(default_factory=Counter)

    def _stream(self, purpose: Purpose, *numbers: int) -> int:
        return stream_key(self.key, purpose, *numbers)

    def _call(self, purpose: Purpose) -> int:
        self._calls[purpose] += 1
        return self._calls[purpose]

    def integer(self, purpose: Purpose, count: int, *, per_call: bool = False) -> int:
        """A uniform integer, 0 to `count - 1`."""
        return below(self._stream(purpose), count, self._call(purpose) if per_call else 0)

    def choice(
        self, purpose: Purpose, values: Integer[np.ndarray, " n"], *, per_call: bool = False
    ) -> int:
        """One of the values, with equal probabilities."""
        return int(values[self.integer(purpose, len(values), per_call=per_call)])

    def bernoulli(self, purpose: Purpose, probability: float) -> bool:
        """True with this probability, in steps of 2**-31."""
        return self.integer(purpose, 1 << 31) < probability * 2**31

    def geometric(self, purpose: Purpose, probability: float) -> int:
        """A geometric variate: the number of trials, 1 or more, up to the first success."""
        if probability >= 1:
            return 1
        draw = (self.integer(purpose, 1 << 31) + 0.5) / 2**31
        return 1 + int(math.log(draw) / math.log1p(-probability))

    def permutation(
        self, purpose: Purpose, count: int, *, per_call: bool = False
    ) -> Integer[np.ndarray, " count"]:
        """A uniform permutation of 0 to `count - 1`."""
        key = self._stream(purpose, self._call(purpose)) if per_call else self._stream(purpose)
        return np.argsort(draws64(key, count), kind="stable")

    def subset(
        self, purpose: Purpose, values: Integer[np.ndarray, " n"], count: int
    ) -> Integer[np.ndarray, " k"]:
        """`count` of the values without replacement, in random order."""
        chosen: np.ndarray = values[self.permutation(purpose, len(values))[:count]]
        return chosen

    def permutation_and_size(
        self, purpose: Purpose, count: int, least: int
    ) -> tuple[Integer[np.ndarray, " count"], int]:
        """A uniform permutation of 0 to `count - 1` and a uniform size, `least` to `count`, per
        call."""
        key = self._stream(purpose, self._call(purpose))
        size = least + below(key, count + 1 - least)
        return np.argsort(draws64(key, count, 1), kind="stable"), size

    def crop_strategy(self, weights: Sequence[float]) -> int:
        """Index of a crop strategy, drawn by weights, in steps of 2**-31."""
        share = self.integer(Purpose.CROP_STRATEGY, 1 << 31) / 2**31
        sums = np.cumsum(weights)
        return int(np.searchsorted(sums, share * sums[-1], side="right"))

    def chain_order(self, count: int) -> Sequence[int]:
        """A uniform permutation of the chains."""
        return small_permutation(self._stream(Purpose.CHAIN_ORDER), count)

    def integer_between(self, low: int, high: int) -> int:
        """A uniform integer from `low` to `high`, inclusive, per call."""
        return low + self.integer(Purpose.CHAIN_CROP, high - low + 1, per_call=True)

    def conformers(self, count: int, stored: int) -> Integer[np.ndarray, " count"]:
        """Index of a stored conformer for each component of the crop."""
        bits = draws64(self._stream(Purpose.CONFORMER), count) >> np.uint64(33)
        return ((bits * np.uint64(stored)) >> np.uint64(31)).astype(np.int64)

    def normal_moves(
        self,
        moved: Bool[np.ndarray, " g"],
        turn: Purpose = Purpose.CONFORMER_ROTATION,
        shift: Purpose = Purpose.CONFORMER_SHIFT,
    ) -> tuple[Float[np.ndarray, "g 3 3"], Float[np.ndarray, "g 3"]]:
        """A rotation and a normal translation, in ångström, of each component, `f32`.

        Components that are not `moved` get draws too, which are unused.
        """
        shifts = normals(self._stream(shift), 3 * len(moved)).reshape(-1, 3)
        return self._rotations(turn, len(moved)), shifts

    def uniform_moves(
        self, count: int, max_shift: float
    ) -> tuple[Float[np.ndarray, "count 3 3"], Float[np.ndarray, "count 3"]]:
        """A rotation and a translation, uniform to `max_shift` on each axis, per residue, `f64`."""
        bits = draws64(self._stream(Purpose.CONFORMER_SHIFT), 3 * count) >> np.uint64(11)
        shifts = ((bits.astype(np.float64) * 2.0**-52 - 1.0) * max_shift).reshape(-1, 3)
        return self._rotations(Purpose.CONFORMER_ROTATION, count).astype(np.float64), shifts

    def _rotations(self, purpose: Purpose, count: int) -> Float[np.ndarray, "count 3 3"]:
        return rotations(normals(self._stream(purpose), 4 * count).reshape(-1, 4))


def contiguous_runs(
    lengths: Sequence[int], budget: int, draws: SampleDraws
) -> Iterator[tuple[int, int, int]]:
    """Chain, start and length of a run of each chain, `budget` positions in total.

    The chains must have more than `budget` positions together.
    """
    needed, remaining = budget, int(sum(lengths))
    for chain in draws.chain_order(len(lengths)):
        length = int(lengths[chain])
        remaining -= length
        size = draws.integer_between(min(length, max(0, needed - remaining)), min(needed, length))
        needed -= size
        yield chain, draws.integer_between(0, length - size), size


def normals(key: int, count: int) -> Float[np.ndarray, " count"]:
    """Standard normal variates of a stream, `f32`, by the Box-Muller transform."""
    pairs = (count + 1) // 2
    share = ((draws64(key, 2 * pairs) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius = np.sqrt(-2.0 * np.log(share[:pairs]))
    angle = 2.0 * np.pi * share[pairs:]
    variates = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return variates[:count].astype(np.float32)


def rotations(quaternions: Float[np.ndarray, "n 4"]) -> Float[np.ndarray, "n 3 3"]:
    """Rotation matrices, `f32`, of quaternions of any norm; the identity for a zero one."""
    r, i, j, k = quaternions.astype(np.float32).T
    s = 2 / np.maximum(r * r + i * i + j * j + k * k, np.float32(1e-24))
    rows = [
        [1 - s * (j * j + k * k), s * (i * j - k * r), s * (i * k + j * r)],
        [s * (i * j + k * r), 1 - s * (i * i + k * k), s * (j * k - i * r)],
        [s * (i * k - j * r), s * (j * k + i * r), 1 - s * (i * i + j * j)],
    ]
    return np.array(rows, np.float32).transpose(2, 0, 1)

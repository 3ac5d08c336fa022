"""The random decisions about a Boltz sample, in the order its code makes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from evofeed.loader.counter_rng import Purpose, below
from evofeed.loader.crop_draws import CounterStream, normals


@runtime_checkable
class BoltzDraws(Protocol):
    """The random decisions; `SampleDraws` makes them, a recording can replay others'."""

    def neighborhood(self, count: int) -> int:
        """Which of the neighbourhood sizes, 0 to `count - 1`."""

    def query(self, count: int) -> int:
        """Which of the candidate tokens the crop grows from."""

    def rows(self, most: int) -> int:
        """Rows of the alignment, 1 to `most`."""

    def pocket(self, probability: float) -> bool:
        """Whether the sample's pocket is given."""

    def binder(self, chains: np.ndarray) -> int:
        """One of these chains."""

    def pocket_size(self, probability: float) -> int:
        """A geometric number, 1 or more."""

    def pocket_tokens(self, tokens: np.ndarray, count: int) -> np.ndarray:
        """`count` of these tokens, without replacement."""

    def quaternions(self, count: int) -> np.ndarray:
        """Normal numbers, `f32[count, 4]`."""

    def translations(self, count: int) -> np.ndarray:
        """Normal numbers, `f32[count, 3]`."""

    def combinations(self, count: int, wanted: int) -> np.ndarray:
        """`wanted` of `count` combinations of equal chains, in random order."""


@dataclass(slots=True)
class SampleDraws(CounterStream):
    """`BoltzDraws` as a pure function of the sample's key."""

    def neighborhood(self, count: int) -> int:
        """Uniform."""
        return below(self._stream(Purpose.NEIGHBORHOOD), count)

    def query(self, count: int) -> int:
        """Uniform."""
        return below(self._stream(Purpose.QUERY_TOKEN), count)

    def rows(self, most: int) -> int:
        """Uniform."""
        return 1 + below(self._stream(Purpose.NUM_ROWS), most)

    def pocket(self, probability: float) -> bool:
        """True with the probability given."""
        return below(self._stream(Purpose.POCKET), 1 << 31) < probability * 2**31

    def binder(self, chains: np.ndarray) -> int:
        """Uniform."""
        return int(chains[below(self._stream(Purpose.BINDER), len(chains))])

    def pocket_size(self, probability: float) -> int:
        """Trials up to the first success."""
        if probability >= 1:
            return 1
        draw = (below(self._stream(Purpose.POCKET_SIZE), 1 << 31) + 0.5) / 2**31
        return 1 + int(math.log(draw) / math.log1p(-probability))

    def pocket_tokens(self, tokens: np.ndarray, count: int) -> np.ndarray:
        """Uniform."""
        chosen: np.ndarray = tokens[self.permutation(Purpose.POCKET_TOKENS, len(tokens))[:count]]
        return chosen

    def quaternions(self, count: int) -> np.ndarray:
        """By Box and Muller."""
        return normals(self._stream(Purpose.ROTATION), count * 4).reshape(-1, 4)

    def translations(self, count: int) -> np.ndarray:
        """By Box and Muller."""
        return normals(self._stream(Purpose.TRANSLATION), count * 3).reshape(-1, 3)

    def combinations(self, count: int, wanted: int) -> np.ndarray:
        """Uniform."""
        return self.permutation(Purpose.COMBINATIONS, count)[:wanted]


def rotations(quaternions: np.ndarray) -> np.ndarray:
    """Rotation matrices `f32[n, 3, 3]` of quaternions that need not be of length one."""
    r, i, j, k = quaternions.astype(np.float32).T
    s = 2 / (r * r + i * i + j * j + k * k)
    rows = [
        [1 - s * (j * j + k * k), s * (i * j - k * r), s * (i * k + j * r)],
        [s * (i * j + k * r), 1 - s * (i * i + k * k), s * (j * k - i * r)],
        [s * (i * k - j * r), s * (j * k + i * r), 1 - s * (i * i + j * j)],
    ]
    return np.array(rows, np.float32).transpose(2, 0, 1)

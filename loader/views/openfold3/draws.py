"""The random decisions about one sample, in the order OpenFold3 makes them.

`CounterDraws` is the free-running source, a pure function of the sample's key; a recording of
somebody else's draws has the same methods and is replayed through the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.counter_rng import Purpose, below, draws64
from evofeed.loader.crop_draws import CounterStream, RunDraws, normals


@runtime_checkable
class CropDraws(RunDraws, Protocol):
    """The random decisions of a crop; chains are sorted by name."""

    def centre(self, tokens: Integer[np.ndarray, " n"]) -> int:
        """Which of these tokens a crop is around, 0 to n - 1."""

    def strategy(self, weights: Sequence[float]) -> int:
        """Which way to crop, in proportion to the weights."""


@runtime_checkable
class SampleDraws(CropDraws, Protocol):
    """All random decisions about a sample."""

    def conformers(self, count: int, stored: int) -> Integer[np.ndarray, " g"]:
        """Which of the stored conformers each component of the crop gets."""

    def moves(
        self, moved: Bool[np.ndarray, " g"]
    ) -> tuple[Float[np.ndarray, "g 4"], Float[np.ndarray, "g 3"]]:
        """Normals of a quaternion, and a shift in ångström, of each component that is moved."""

    def main_rows(self, count: int) -> Integer[np.ndarray, " k"]:
        """Rows of one chain's main MSA, 1 to all of `count`, each once, as drawn."""

    def used_rows(self, total: int, count: int) -> Integer[np.ndarray, " count"]:
        """Rows of the finished MSA that are sent, each once, ascending."""


@dataclass(slots=True)
class CounterDraws(CounterStream):
    """`SampleDraws` of the sample with this key."""

    _centres: int = 0
    _chains: int = 0

    def centre(self, tokens: Integer[np.ndarray, " n"]) -> int:
        """Evenly; the chain crop and the crop have a draw each."""
        self._centres += 1
        return below(self._stream(Purpose.CROP_CENTRE), len(tokens), self._centres)

    def conformers(self, count: int, stored: int) -> Integer[np.ndarray, " g"]:
        """Evenly."""
        bits = draws64(self._stream(Purpose.CONFORMER), count) >> np.uint64(33)
        return ((bits * np.uint64(stored)) >> np.uint64(31)).astype(np.int64)

    def moves(
        self, moved: Bool[np.ndarray, " g"]
    ) -> tuple[Float[np.ndarray, "g 4"], Float[np.ndarray, "g 3"]]:
        """Standard normals; also of components that are not moved, whose draws nobody reads."""
        turn = normals(self._stream(Purpose.CONFORMER_ROTATION), 4 * len(moved))
        shift = normals(self._stream(Purpose.CONFORMER_SHIFT), 3 * len(moved))
        return turn.reshape(-1, 4), shift.reshape(-1, 3)

    def main_rows(self, count: int) -> Integer[np.ndarray, " k"]:
        """Any number of rows as likely as any other."""
        self._chains += 1
        key = self._stream(Purpose.MAIN_ROWS, self._chains)
        size = 1 + below(key, count)
        order: np.ndarray = np.argsort(draws64(key, count, 1), kind="stable")[:size]
        return order

    def used_rows(self, total: int, count: int) -> Integer[np.ndarray, " count"]:
        """Every set of that size as likely as any other."""
        return np.sort(self.permutation(Purpose.USED_ROWS, total)[:count])

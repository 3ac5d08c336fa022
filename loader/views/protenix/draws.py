"""The random decisions about one sample, in the order Protenix makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from evofeed.base.shapes import Float, Integer
from evofeed.loader.counter_rng import Purpose, below, draws64
from evofeed.loader.crop_draws import CounterStream, RunDraws, normals
from evofeed.loader.views.boltz.draws import rotations


@runtime_checkable
class ProtenixDraws(RunDraws, Protocol):
    """The random decisions; `CounterDraws` makes them, a recording can replay others'."""

    def molecules(self, count: int) -> Integer[np.ndarray, " count"]:
        """A permutation of the molecules."""

    def copies(self, numbers: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """These numbers of an entity's copies in another order."""

    def strategy(self, weights: Sequence[float]) -> int:
        """Which way to crop, in proportion to the weights."""

    def side(self) -> int:
        """0 for the end of a residue on the left, 1 for that on the right."""

    def centre(self, count: int) -> int:
        """Which of the candidate tokens a spatial crop is around."""

    def moves(
        self, count: int, most: float
    ) -> tuple[Float[np.ndarray, "count 3"], Float[np.ndarray, "count 3 3"]]:
        """A shift, up to `most` along every axis, and a rotation of each residue."""


@dataclass(slots=True)
class CounterDraws(CounterStream):
    """`ProtenixDraws` of the sample with this key."""

    _sides: int = 0
    _entities: int = 0

    def molecules(self, count: int) -> Integer[np.ndarray, " count"]:
        """A uniform permutation."""
        return self.permutation(Purpose.MOLECULE_ORDER, count)

    def copies(self, numbers: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """A uniform permutation, each entity its own."""
        self._entities += 1
        order = self.permutation(Purpose.COPY_ORDER, len(numbers), self._entities)
        moved: np.ndarray = numbers[order]
        return moved

    def side(self) -> int:
        """Either as likely, each call its own."""
        self._sides += 1
        return below(self._stream(Purpose.RESIDUE_SIDE), 2, self._sides)

    def centre(self, count: int) -> int:
        """Evenly."""
        return below(self._stream(Purpose.CROP_CENTRE), count)

    def moves(
        self, count: int, most: float
    ) -> tuple[Float[np.ndarray, "count 3"], Float[np.ndarray, "count 3 3"]]:
        """Uniform shifts, uniform rotations by normal quaternions."""
        bits = draws64(self._stream(Purpose.CONFORMER_SHIFT), 3 * count) >> np.uint64(11)
        shift = (bits.astype(np.float64) * 2.0**-52 - 1.0) * most
        turn = normals(self._stream(Purpose.CONFORMER_ROTATION), 4 * count)
        return shift.reshape(-1, 3), rotations(turn.reshape(-1, 4)).astype(np.float64)

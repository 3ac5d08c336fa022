"""The random decisions about a sample of each project, in the order its code makes them.

Each class is a pure function of the sample's key. A recording of somebody else's draws is a
subclass that answers from a file, and is replayed through the same plan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evofeed.base.shapes import Bool, Float, Integer
from evofeed.loader.counter_rng import Purpose, below, draws64
from evofeed.loader.crop_draws import CounterStream, normals


@dataclass(slots=True)
class BoltzDraws(CounterStream):
    """The decisions about a sample of Boltz."""

    def neighborhood(self, count: int) -> int:
        """Which of the neighbourhood sizes, 0 to `count - 1`, evenly."""
        return self.even(Purpose.NEIGHBORHOOD, count)

    def query(self, count: int) -> int:
        """Which of the candidate tokens the crop grows from, evenly."""
        return self.even(Purpose.QUERY_TOKEN, count)

    def rows(self, most: int) -> int:
        """Rows of the alignment, 1 to `most`, evenly."""
        return 1 + self.even(Purpose.NUM_ROWS, most)

    def pocket(self, probability: float) -> bool:
        """Whether the sample's pocket is given."""
        return self.even(Purpose.POCKET, 1 << 31) < probability * 2**31

    def binder(self, chains: np.ndarray) -> int:
        """One of these chains, evenly."""
        return int(chains[self.even(Purpose.BINDER, len(chains))])

    def pocket_size(self, probability: float) -> int:
        """A geometric number, 1 or more: trials up to the first success."""
        if probability >= 1:
            return 1
        draw = (self.even(Purpose.POCKET_SIZE, 1 << 31) + 0.5) / 2**31
        return 1 + int(math.log(draw) / math.log1p(-probability))

    def pocket_tokens(self, tokens: np.ndarray, count: int) -> np.ndarray:
        """`count` of these tokens, without replacement."""
        chosen: np.ndarray = tokens[self.permutation(Purpose.POCKET_TOKENS, len(tokens))[:count]]
        return chosen

    def quaternions(self, count: int) -> np.ndarray:
        """Normal numbers, `f32[count, 4]`."""
        return normals(self.stream(Purpose.ROTATION), count * 4).reshape(-1, 4)

    def translations(self, count: int) -> np.ndarray:
        """Normal numbers, `f32[count, 3]`."""
        return normals(self.stream(Purpose.TRANSLATION), count * 3).reshape(-1, 3)

    def combinations(self, count: int, wanted: int) -> np.ndarray:
        """`wanted` of `count` combinations of equal chains, in random order."""
        return self.permutation(Purpose.COMBINATIONS, count)[:wanted]


@dataclass(slots=True)
class OpenFold3Draws(CounterStream):
    """The decisions about a sample of OpenFold3; chains are sorted by name."""

    _centres: int = 0
    _chains: int = 0
    _templated: int = 0

    def centre(self, tokens: Integer[np.ndarray, " n"]) -> int:
        """Which of these tokens a crop is around; the chain crop and the crop have a draw each."""
        self._centres += 1
        return below(self.stream(Purpose.CROP_CENTRE), len(tokens), self._centres)

    def conformers(self, count: int, stored: int) -> Integer[np.ndarray, " g"]:
        """Which of the stored conformers each component of the crop gets."""
        bits = draws64(self.stream(Purpose.CONFORMER), count) >> np.uint64(33)
        return ((bits * np.uint64(stored)) >> np.uint64(31)).astype(np.int64)

    def moves(
        self, moved: Bool[np.ndarray, " g"]
    ) -> tuple[Float[np.ndarray, "g 4"], Float[np.ndarray, "g 3"]]:
        """Normals of a quaternion, and a shift in ångström, of each component.

        Also of components that are not moved, whose draws nobody reads.
        """
        turn = normals(self.stream(Purpose.CONFORMER_ROTATION), 4 * len(moved))
        shift = normals(self.stream(Purpose.CONFORMER_SHIFT), 3 * len(moved))
        return turn.reshape(-1, 4), shift.reshape(-1, 3)

    def main_rows(self, count: int) -> Integer[np.ndarray, " k"]:
        """Rows of one chain's main MSA, 1 to all of `count`, each once, as drawn."""
        self._chains += 1
        key = self.stream(Purpose.MAIN_ROWS, self._chains)
        size = 1 + below(key, count)
        order: np.ndarray = np.argsort(draws64(key, count, 1), kind="stable")[:size]
        return order

    def templates(self, count: int, most: int) -> Integer[np.ndarray, " k"]:
        """Templates of one chain, 0 to all of `count` but at most so many, each once, as drawn."""
        self._templated += 1
        key = self.stream(Purpose.TEMPLATES, self._templated)
        order: np.ndarray = np.argsort(draws64(key, count, 1), kind="stable")
        return order[: min(below(key, count + 1), most)]

    def used_rows(self, total: int, count: int) -> Integer[np.ndarray, " count"]:
        """Rows of the finished MSA that are sent, each once, ascending."""
        return np.sort(self.permutation(Purpose.USED_ROWS, total)[:count])


@dataclass(slots=True)
class ProtenixDraws(CounterStream):
    """The decisions about a sample of Protenix."""

    _sides: int = 0
    _entities: int = 0
    _templated: int = 0

    def molecules(self, count: int) -> Integer[np.ndarray, " count"]:
        """A permutation of the molecules."""
        return self.permutation(Purpose.MOLECULE_ORDER, count)

    def copies(self, numbers: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """These numbers of an entity's copies in another order, each entity its own."""
        self._entities += 1
        order = self.permutation(Purpose.COPY_ORDER, len(numbers), self._entities)
        moved: np.ndarray = numbers[order]
        return moved

    def side(self) -> int:
        """0 for the end of a residue on the left, 1 for that on the right, each call its own."""
        self._sides += 1
        return below(self.stream(Purpose.RESIDUE_SIDE), 2, self._sides)

    def centre(self, count: int) -> int:
        """Which of the candidate tokens a spatial crop is around."""
        return self.even(Purpose.CROP_CENTRE, count)

    def templates(self, count: int) -> tuple[Integer[np.ndarray, " count"], int]:
        """An order of so many hits, and of how many of them a sequence has templates, 0 to all;
        each call its own."""
        self._templated += 1
        key = self.stream(Purpose.TEMPLATES, self._templated)
        return np.argsort(draws64(key, count, 1), kind="stable"), below(key, count + 1)

    def moves(
        self, count: int, most: float
    ) -> tuple[Float[np.ndarray, "count 3"], Float[np.ndarray, "count 3 3"]]:
        """A shift, up to `most` along every axis, and a rotation of each residue."""
        bits = draws64(self.stream(Purpose.CONFORMER_SHIFT), 3 * count) >> np.uint64(11)
        shift = (bits.astype(np.float64) * 2.0**-52 - 1.0) * most
        turn = normals(self.stream(Purpose.CONFORMER_ROTATION), 4 * count)
        return shift.reshape(-1, 3), rotations(turn.reshape(-1, 4)).astype(np.float64)


def rotations(quaternions: np.ndarray) -> np.ndarray:
    """Rotation matrices `f32[n, 3, 3]` of quaternions of any length; none turns by nothing."""
    r, i, j, k = quaternions.astype(np.float32).T
    s = 2 / np.maximum(r * r + i * i + j * j + k * k, np.float32(1e-24))
    rows = [
        [1 - s * (j * j + k * k), s * (i * j - k * r), s * (i * k + j * r)],
        [s * (i * j + k * r), 1 - s * (i * i + k * k), s * (j * k - i * r)],
        [s * (i * k - j * r), s * (j * k + i * r), 1 - s * (i * i + j * j)],
    ]
    return np.array(rows, np.float32).transpose(2, 0, 1)

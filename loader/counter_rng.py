"""Counter-based random numbers: pure functions of seed, position and purpose.

A draw is `mix(key + (i + 1) * step)`, the splitmix64 generator; the key is a
hash of (seed, epoch, position, recycle, purpose). The generator is stateless, and
integer arithmetic is the same on every device: numpy (`uint64`), torch on the
CPU and torch on a GPU (`int64`, which wraps) give the same bits.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np

STEP: Final = 0x9E3779B97F4A7C15
MIX_1: Final = 0xBF58476D1CE4E5B9
MIX_2: Final = 0x94D049BB133111EB
_WORD: Final = (1 << 64) - 1


@enum.unique
class Purpose(enum.IntEnum):
    """Purpose of a stream of draws. Numbers are hashed into the key: never renumber."""

    ORDER = 1
    ACCEPT = 2
    MIXTURE = 3
    RECYCLING = 4
    CLAMP = 5
    CROP = 6
    TEMPLATE_START = 7
    TEMPLATE_ORDER = 8
    BLOCKS = 9
    DISTILLATION_ROWS = 10
    ROW_ORDER = 11
    MASK = 12
    REPLACEMENT = 13
    EXTRA_ORDER = 15
    SUBSTITUTE = 16
    BALANCE = 17
    WINDOWS = 18
    SPATIAL_CROP = 19
    INTERFACE = 20
    CHAIN_ORDER = 21
    CHAIN_CROP = 22
    DATAPOINT = 23
    CROP_STRATEGY = 24
    CROP_CENTRE = 25
    CONFORMER = 26
    CONFORMER_ROTATION = 27
    CONFORMER_SHIFT = 28
    MAIN_ROWS = 29
    USED_ROWS = 30
    TEMPLATES = 31
    NEIGHBORHOOD = 40
    QUERY_TOKEN = 41
    NUM_ROWS = 42
    POCKET = 43
    BINDER = 44
    POCKET_SIZE = 45
    POCKET_TOKENS = 46
    ROTATION = 47
    TRANSLATION = 48
    COMBINATIONS = 49
    MOLECULE_ORDER = 50
    COPY_ORDER = 51
    HOOKS = 60
    RESIDUE_SIDE = 52


def _mix_word(z: int) -> int:
    z = ((z ^ (z >> 30)) * MIX_1) & _WORD
    z = ((z ^ (z >> 27)) * MIX_2) & _WORD
    return z ^ (z >> 31)


def stream_key(*words: int) -> int:
    """The 64-bit key of a stream, a hash of the words."""
    key = 0
    for word in words:
        key = _mix_word((key ^ (int(word) & _WORD)) + STEP & _WORD)
    return key


def draws64(key: int, count: int, start: int = 0) -> np.ndarray:
    """`u64[count]`: draws `start .. start + count` of a stream."""
    return draws64_at(key, np.arange(start, start + count, dtype=np.uint64))


def draws64_at(key: int, index: np.ndarray) -> np.ndarray:
    """`u64` draws of a stream at these indices, `u64`."""
    z = index + np.uint64(1)
    z *= np.uint64(STEP)
    z += np.uint64(key)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(MIX_1)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(MIX_2)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def bits32(key: int, count: int) -> np.ndarray:
    """`i64[count]`: the upper 32 bits of the draws, 0 to 2**32 - 1."""
    return (draws64(key, count) >> np.uint64(32)).astype(np.int64)


def small_permutation(key: int, count: int) -> list[int]:
    """A permutation of `0 .. count - 1`, by sorting draws; faster than numpy for small counts."""
    keys = [_mix_word((key + (i + 1) * STEP) & _WORD) for i in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def below(key: int, bound: int, index: int = 0) -> int:
    """A uniform integer in `[0, bound)`; `bound` up to 2**31."""
    if not 0 < bound <= 1 << 31:
        raise ValueError(f"bound must be 1 to 2**31, not {bound}")
    z = _mix_word((key + (index + 1) * STEP) & _WORD)
    return ((z >> 32) * bound) >> 32

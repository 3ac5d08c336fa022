"""Random decisions about the MSA of one recycle, drawn on the device.

A subclass may replay the recorded draws of another implementation through the same features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Integer
from evofeed.loader import counter_rng
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import MIX_1, MIX_2, STEP, Purpose
from evofeed.loader.transforms.msa import draw_replacement


@dataclass(slots=True)
class RecycleDraws:
    """Random decisions of one recycle of a sample on `device`, in the order of their use."""

    config: LoaderConfig
    sample_key: int
    recycle: int
    device: torch.device

    def key(self, purpose: Purpose) -> int:
        """The key of this recycle's draws for a purpose."""
        return counter_rng.stream_key(self.sample_key, self.recycle, purpose)

    def block_starts(self, num_rows: int) -> list[int]:
        """First rows of the `num_blocks` deleted blocks, uniform over the rows after the query."""
        key = self.key(Purpose.BLOCKS)
        return [1 + counter_rng.below(key, num_rows - 1, i) for i in range(self.config.num_blocks)]

    def distillation_order(self, count: int) -> Tensor:
        """A uniform permutation of the rows after the query, `i64[count]`."""
        return permutation(self.key(Purpose.DISTILLATION_ROWS), count, self.device)

    def row_order(self, count: int) -> Tensor:
        """A uniform permutation of the rows after the query, `i64[count]`."""
        return permutation(self.key(Purpose.ROW_ORDER), count, self.device)

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        """Cells selected by masked-MSA, `bool[num_rows, num_res]`: `masked_fraction` of all."""
        key = self.key(Purpose.MASK)
        bits = bits32(key, num_rows * num_res, self.device)
        return (bits < int(self.config.masked_fraction * 2**32)).view(num_rows, num_res)

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        """Code of each cell if masked: uniform, profile, same, else [MASK] (AF2 SI 1.2.7)."""
        config = self.config
        key = self.key(Purpose.REPLACEMENT)
        kind, draw = halves(key, msa.numel(), self.device)
        probs = (config.uniform_prob, config.profile_prob, config.same_prob)
        return draw_replacement(
            msa, profile_counts, kind.view(msa.shape), draw.view(msa.shape), probs
        )

    def extra_order(self, count: int) -> Tensor:
        """A uniform permutation of the extra rows, `i64[count]`."""
        return permutation(self.key(Purpose.EXTRA_ORDER), count, self.device)


_LOW_32: Final = (1 << 32) - 1


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _shift_xor(z: Tensor, shift: int) -> Tensor:
    # `>>` is arithmetic in torch; the mask makes the shift logical. In place to save memory.
    return (z >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(z)


_STEPS: dict[tuple[torch.device, int], Tensor] = {}
"""`i * STEP` by device and stream, grown as needed."""


def _steps(count: int, device: torch.device) -> Tensor:
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    steps = _STEPS.get((device, stream))
    if steps is None or len(steps) < count:
        size = max(1 << 16, 1 << (count - 1).bit_length())
        steps = torch.arange(1, size + 1, device=device) * _signed(STEP)
        _STEPS[device, stream] = steps
    return steps[:count]


def draws64(key: int, count: int, device: torch.device) -> Integer[Tensor, " count"]:
    """`i64[count]` draws with the bits of `evofeed.loader.counter_rng.draws64`."""
    z = _steps(count, device) + _signed(key)
    z = _shift_xor(z, 30).mul_(_signed(MIX_1))
    z = _shift_xor(z, 27).mul_(_signed(MIX_2))
    return _shift_xor(z, 31)


def bits32(key: int, count: int, device: torch.device) -> Integer[Tensor, " count"]:
    """The upper 32 bits of each draw, 0 to 2**32 - 1."""
    return (draws64(key, count, device) >> 32) & _LOW_32


def halves(key: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Upper and lower 32 bits of each draw: two independent streams for the price of one."""
    z = draws64(key, count, device)
    return (z >> 32) & _LOW_32, z & _LOW_32


def permutation(key: int, count: int, device: torch.device) -> Integer[Tensor, " count"]:
    """A uniform permutation of `0 .. count - 1`: the order of `count` random keys."""
    keys = (draws64(key, count, device) >> 1) & ((1 << 63) - 1)
    return torch.argsort(keys, stable=True)

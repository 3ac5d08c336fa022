"""The random decisions about the MSA of one recycle, made on the device.

`RecycleDraws` is the free-running source; a recording of somebody else's draws has the
same methods and is replayed through the same features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from evofeed.loader import counter_rng
from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose
from evofeed.loader.transforms import device_rng
from evofeed.loader.transforms.msa import draw_replacement


@runtime_checkable
class MsaDraws(Protocol):
    """The random decisions about the MSA of one recycle, in the order they are made."""

    def block_starts(self, num_rows: int) -> list[int]:
        """First rows of the deleted blocks, 1 to `num_rows - 1`."""

    def distillation_order(self, count: int) -> Tensor:
        """A permutation of the rows after the query, `i64[count]`."""

    def row_order(self, count: int) -> Tensor:
        """A permutation of the rows after the query, `i64[count]`."""

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        """Where masked-MSA asks, `bool[num_rows, num_res]`."""

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        """What each asked cell becomes, `i64` like `msa`."""

    def extra_order(self, count: int) -> Tensor:
        """A permutation of the rows that are no centre, `i64[count]`."""


@dataclass(frozen=True, slots=True)
class RecycleDraws:
    """`MsaDraws` of recycle `recycle` of one sample, on `device`."""

    config: LoaderConfig
    sample_key: int
    recycle: int
    device: torch.device

    def key(self, purpose: Purpose) -> int:
        """The key of this recycle's draws for a purpose."""
        return counter_rng.stream_key(self.sample_key, self.recycle, purpose)

    def block_starts(self, num_rows: int) -> list[int]:
        """`num_blocks` independent starts, uniform over the rows after the query."""
        key = self.key(Purpose.BLOCKS)
        return [1 + counter_rng.below(key, num_rows - 1, i) for i in range(self.config.num_blocks)]

    def distillation_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        key = self.key(Purpose.DISTILLATION_ROWS)
        return device_rng.permutation(key, count, self.device)

    def row_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        return device_rng.permutation(self.key(Purpose.ROW_ORDER), count, self.device)

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        """Each cell on its own with probability `masked_fraction`."""
        key = self.key(Purpose.MASK)
        bits = device_rng.bits32(key, num_rows * num_res, self.device)
        return (bits < int(self.config.masked_fraction * 2**32)).view(num_rows, num_res)

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        """The mixture of AF2 SI 1.2.7: uniform, profile, same, else [MASK]."""
        config = self.config
        key = self.key(Purpose.REPLACEMENT)
        kind, which = device_rng.halves(key, msa.numel(), self.device)
        probs = (config.uniform_prob, config.profile_prob, config.same_prob)
        return draw_replacement(
            msa, profile_counts, kind.view(msa.shape), which.view(msa.shape), probs
        )

    def extra_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        return device_rng.permutation(self.key(Purpose.EXTRA_ORDER), count, self.device)

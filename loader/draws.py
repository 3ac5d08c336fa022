"""Every random decision about one sample, made from `(seed, epoch, position)`.

`RecycleDraws` is the free-running source; a recording of somebody else's draws has the
same methods and is replayed through the same features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from evofeed.loader import random
from evofeed.loader.config import LoaderConfig
from evofeed.loader.random import Purpose
from evofeed.loader.transforms import random as device_random
from evofeed.loader.transforms.crop import Crop, crop_templates
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
        return random.stream_key(self.sample_key, self.recycle, purpose)

    def block_starts(self, num_rows: int) -> list[int]:
        """`num_blocks` independent starts, uniform over the rows after the query."""
        key = self.key(Purpose.BLOCKS)
        return [1 + random.below(key, num_rows - 1, i) for i in range(self.config.num_blocks)]

    def distillation_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        key = self.key(Purpose.DISTILLATION_ROWS)
        return device_random.permutation(key, count, self.device)

    def row_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        return device_random.permutation(self.key(Purpose.ROW_ORDER), count, self.device)

    def mask_position(self, num_rows: int, num_res: int) -> Tensor:
        """Each cell on its own with probability `masked_fraction`."""
        key = self.key(Purpose.MASK)
        bits = device_random.bits32(key, num_rows * num_res, self.device)
        return (bits < int(self.config.masked_fraction * 2**32)).view(num_rows, num_res)

    def replacement(self, msa: Tensor, profile_counts: Tensor) -> Tensor:
        """The mixture of AF2 SI 1.2.7: uniform, profile, same, else [MASK]."""
        config = self.config
        key = self.key(Purpose.REPLACEMENT)
        kind, which = device_random.halves(key, msa.numel(), self.device)
        probs = (config.uniform_prob, config.profile_prob, config.same_prob)
        return draw_replacement(
            msa, profile_counts, kind.view(msa.shape), which.view(msa.shape), probs
        )

    def extra_order(self, count: int) -> Tensor:
        """A uniform permutation."""
        return device_random.permutation(self.key(Purpose.EXTRA_ORDER), count, self.device)


def sample_key(seed: int, epoch: int, position: int) -> int:
    """The key of everything random about the sample at a position of an epoch."""
    return random.stream_key(seed, epoch, position)


def draw_crop(config: LoaderConfig, key: int, num_res: int, num_templates: int) -> Crop:
    """Residues and templates kept of a chain: `x` in `[0, n]`, then the start in `[0, n - x]`."""
    length = min(num_res, config.crop_size or num_res)
    spare = num_res - length
    crop_key = random.stream_key(key, Purpose.CROP)
    x = random.below(crop_key, spare + 1, 0)
    start = random.below(crop_key, spare - x + 1, 1)
    order, first = list(range(num_templates)), 0
    if config.subsample_templates and num_templates:
        first = random.below(random.stream_key(key, Purpose.TEMPLATE_START), num_templates + 1)
        order = random.few_in_order(random.stream_key(key, Purpose.TEMPLATE_ORDER), num_templates)
    templates = crop_templates(num_templates, config.max_templates, first, order)
    return Crop(start, length, templates)


def use_clamped_fape(config: LoaderConfig, key: int) -> float:
    """1.0 with probability `clamp_prob`, one draw a sample."""
    draw = random.below(random.stream_key(key, Purpose.CLAMP), 1 << 31)
    return float(draw < config.clamp_prob * 2**31)


def recycling_iters(config: LoaderConfig, seed: int, epoch: int, step: int) -> int:
    """Recycling iterations of an optimiser step, the same on every rank."""
    if not config.uniform_recycling:
        return config.max_recycling_iters
    key = random.stream_key(seed, epoch, step, Purpose.RECYCLING)
    return random.below(key, config.max_recycling_iters + 1)

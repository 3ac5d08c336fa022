"""Random decisions of the host about one sample, from `(seed, epoch, position)`.

Those about its MSA are in `evofeed.loader.msa_draws`. Imports no torch. The crop is AF2's
(SI 1.2.8) as in OpenFold, with the biases that published models were trained with: its start
tends to the N-terminus, and a chain with T templates gets none at all with probability
1/(T + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from evofeed.loader.config import LoaderConfig
from evofeed.loader.counter_rng import Purpose, below, small_permutation, stream_key


@dataclass(frozen=True, slots=True)
class Crop:
    """Residues and templates of one sample, the same in all its recycles."""

    start: int
    """First residue."""
    length: int
    """Number of residues."""
    templates: tuple[int, ...]
    """Indices of the chain's templates, in the order of their use."""

    @property
    def stop(self) -> int:
        """First residue after the crop."""
        return self.start + self.length


def sample_key(seed: int, epoch: int, position: int) -> int:
    """The key of all random draws of the sample at a position of an epoch."""
    return stream_key(seed, epoch, position)


def draw_crop(config: LoaderConfig, key: int, num_res: int, num_templates: int) -> Crop:
    """A random crop: for `n` residues outside it, `x` in `[0, n]`, then start in `[0, n - x]`."""
    length = min(num_res, config.crop_size or num_res)
    n = num_res - length
    crop_key = stream_key(key, Purpose.CROP)
    x = below(crop_key, n + 1, 0)
    start = below(crop_key, n - x + 1, 1)
    order, first = list(range(num_templates)), 0
    if config.subsample_templates and num_templates:
        first = below(stream_key(key, Purpose.TEMPLATE_START), num_templates + 1)
        order = small_permutation(stream_key(key, Purpose.TEMPLATE_ORDER), num_templates)
    return Crop(start, length, tuple(order[first : first + config.max_templates]))


def use_clamped_fape(config: LoaderConfig, key: int) -> float:
    """1.0 with probability `clamp_prob`, else 0.0; one draw per sample."""
    draw = below(stream_key(key, Purpose.CLAMP), 1 << 31)
    return float(draw < config.clamp_prob * 2**31)


def recycling_iters(config: LoaderConfig, seed: int, epoch: int, step: int) -> int:
    """Recycling iterations of an optimiser step, the same on every rank."""
    if not config.uniform_recycling:
        return config.max_recycling_iters
    key = stream_key(seed, epoch, step, Purpose.RECYCLING)
    return below(key, config.max_recycling_iters + 1)

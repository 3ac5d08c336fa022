"""From a run's `gradients` to what averages them, and the modes of 16 and 8 bits and of top-k.

`int8`: a byte a weight and way, with error feedback on both ways. Every host sends each other the
piece that one will average, and gets averages back: twice (H - 1) / H bytes a weight, as a ring
would. What rounding loses stays with whoever rounded, the averaging host's loss as its own, H
times: the mean over hosts counts it once. Source: Seide et al. 2014 (error feedback), Tang et al.
2021, "1-bit Adam" (both ways).

`topk`: only the largest entries are sent, the others wait: Deep Gradient Compression. Of every
block of 65,536 neighbours, about a weight matrix, the largest few go as a bfloat16 and a 16-bit
position. What waits is not the gradient but its momentum (momentum correction), and where an entry
is sent its momentum restarts (factor masking). Fewer and fewer entries are sent in the warm-up:
1/4, 1/16, ... Clipping each rank's own gradient is `optim.clip: per_example`. Source: Lin et al.
2018, algorithms 1 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from evofeed.trainer.config import GradientConfig
from evofeed.trainer.gradients.exchange import Exchange, Span, WithResidual
from evofeed.trainer.gradients.hosts import Group, host_groups
from evofeed.trainer.gradients.low_rank import LowRank

BLOCK: Final = 128
"""Neighbours that share a scale in `int8`: a parameter begins at a multiple of it."""
_SPARSE_BLOCK: Final = 1 << 16


def exchange_of(
    config: GradientConfig, spans: Iterable[Span], size: int, *, rank: int, ranks: int,
    device: torch.device,
) -> Exchange:  # fmt: skip
    """What averages a flat gradient of `size` elements; every rank must call it.

    Raises:
        TrainerError: the hosts have different numbers of ranks.
    """
    if config.mode == "none" or ranks == 1:
        return Exchange(config, (Group(), Group(None, rank, ranks)), spans, size, device)
    return _MODES[config.mode](config, host_groups(rank, ranks, device), spans, size, device)


class Bfloat16(Exchange):
    """`bf16`: half the bytes between hosts, rounded; what rounding loses is lost."""

    def _between(self, part: Tensor, step: int) -> None:
        low = self.between.sum(part.to(torch.bfloat16))
        torch.div(low.float(), self.between.size, out=part)


class Quantized(WithResidual):
    """`int8`: averages in 8 bits."""

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        hosts, length = self.between.size, part.numel()
        owed = _padded(kept["residual"].add_(part), hosts * BLOCK).view(hosts, -1)
        codes = encode(owed)
        owed = owed - decode(codes)
        mine = decode(self.between.swap(codes)).mean(0, keepdim=True)
        codes = encode(mine)
        owed[self.between.rank] += hosts * (mine - decode(codes))[0]
        kept["residual"].copy_(owed.view(-1)[:length])
        return decode(self.between.gather(codes[0])).view(-1)[:length]


def encode(x: Tensor) -> Tensor:
    """Bytes of `x`, `[R, n]` with n a multiple of `BLOCK`: codes, then a float32 scale a block."""
    blocks = x.view(len(x), -1, BLOCK)
    scale = blocks.abs().amax(-1) / 127
    codes = (blocks / scale.clamp(min=1e-30)[..., None]).round_().to(torch.int8)
    return torch.cat([codes.view(len(x), -1).view(torch.uint8), scale.view(torch.uint8)], 1)


def decode(coded: Tensor) -> Tensor:
    """What `encode` made of `[R, n]`, back in float32; infinite or nan where it was."""
    rows, nbytes = coded.shape
    count = nbytes * BLOCK // (BLOCK + 4)
    codes = coded[:, :count].view(torch.int8).view(rows, -1, BLOCK)
    scale = coded[:, count:].contiguous().view(torch.float32)
    return (codes.float() * scale[..., None]).view(rows, count)


class Sparse(WithResidual):
    """`topk`: averages the largest entries; without momentum nothing is ever lost."""

    def _empty(self, device: torch.device) -> dict[str, Tensor]:
        kept = super()._empty(device)
        return kept | ({"momentum": kept["residual"].clone()} if self.config.momentum else {})

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        length, block = part.numel(), min(part.numel(), _SPARSE_BLOCK)
        if "momentum" in kept:
            part = kept["momentum"].mul_(self.config.momentum).add_(part)
        owed = _padded(kept["residual"].add_(part), block).view(-1, block)
        density = density_at(step, self.config.density, self.config.warmup_steps)
        places = owed.abs().topk(max(1, round(block * density)), dim=1, sorted=False).indices
        largest = owed.gather(1, places)
        values = largest.to(torch.bfloat16)
        left = owed.scatter(1, places, largest - values.float())
        kept["residual"].copy_(left.view(-1)[:length])
        if "momentum" in kept:
            waits = torch.ones_like(owed).scatter_(1, places, 0.0)
            kept["momentum"].mul_(waits.view(-1)[:length])
        short = (places - _SPARSE_BLOCK // 2).to(torch.int16)
        coded = torch.stack([values.view(torch.int16), short]).view(torch.uint8)
        total = torch.zeros_like(owed)
        for one in self.between.gather(coded.view(-1)).view(torch.int16):  # host by host: same bits
            sent, at = one.view(2, *places.shape)
            at = at.long() + _SPARSE_BLOCK // 2
            total.scatter_(1, at, total.gather(1, at) + sent.view(torch.bfloat16).float())
        return total.view(-1)[:length] / self.between.size


def density_at(step: int, density: float, warmup: int) -> float:
    """Share of the entries that step number `step` sends: 1/4, 1/16, ... in the warm-up."""
    if step >= warmup:
        return density
    stages = max(1, math.ceil(-math.log(density, 4)) - 1)
    return max(density, float(4.0 ** -(1 + step * stages // warmup)))


def _padded(x: Tensor, multiple: int) -> Tensor:
    return F.pad(x, (0, -x.numel() % multiple))


_MODES: Final[dict[str, type[Exchange]]] = {
    "hierarchical": Exchange, "bf16": Bfloat16, "int8": Quantized, "powersgd": LowRank,
    "topk": Sparse,
}  # fmt: skip

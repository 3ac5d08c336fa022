"""`int8`: a byte a weight and way, with error feedback on both ways.

Every host sends each other the piece that one will average, and gets averages back: twice
(H - 1) / H bytes a weight, as a ring would. What rounding loses stays with whoever rounded, the
averaging host's loss as its own, H times: the mean over hosts counts it once.

Source: Seide et al. 2014 (error feedback), Tang et al. 2021, "1-bit Adam" (both ways).
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.trainer.gradients.exchange import WithResidual, padded

BLOCK = 128
"""Neighbours that share a scale: a parameter begins at a multiple of it."""


class Quantized(WithResidual):
    """Averages in 8 bits; see the module."""

    def _send(self, part: Tensor, kept: dict[str, Tensor], step: int) -> Tensor:
        hosts, length = self.between.size, part.numel()
        owed = padded(kept["residual"].add_(part), hosts * BLOCK).view(hosts, -1)
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

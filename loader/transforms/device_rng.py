"""The same draws as `evofeed.loader.counter_rng`, made where the features are made."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from evofeed.base.shapes import Integer
from evofeed.loader.counter_rng import MIX_1, MIX_2, STEP

_LOW_32: Final = (1 << 32) - 1


def _signed(word: int) -> int:
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def _shift_xor(z: Tensor, shift: int) -> Tensor:
    # `>>` keeps the sign in torch; the mask makes the shift logical. In place where it can be.
    return (z >> shift).bitwise_and_((1 << (64 - shift)) - 1).bitwise_xor_(z)


_STEPS: dict[tuple[torch.device, int], Tensor] = {}
"""`i * STEP` on each device and stream that draws, grown as needed."""


def _steps(count: int, device: torch.device) -> Tensor:
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    steps = _STEPS.get((device, stream))
    if steps is None or len(steps) < count:
        size = max(1 << 16, 1 << (count - 1).bit_length())
        steps = torch.arange(1, size + 1, device=device) * _signed(STEP)
        _STEPS[device, stream] = steps
    return steps[:count]


def draws64(key: int, count: int, device: torch.device) -> Integer[Tensor, " count"]:
    """`i64[count]`, the bit patterns of `evofeed.loader.counter_rng.draws64`."""
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

"""Arguments of the attention kernels for Hopper cards, as all their launches give them."""

from __future__ import annotations

from typing import Any, overload

import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.attention.inputs import BackwardInputs
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import Tile


def sizes(tile: Tile, D: int) -> dict[str, Any]:
    """Sizes of tiles that every kernel is compiled for."""
    return {"D": D, "BLOCK_D": padded(D), "BLOCK_Q": tile.rows, "BLOCK_K": tile.columns}


@overload
def even(bias: Tensor) -> Tensor: ...
@overload
def even(bias: Tensor | None) -> Tensor | None: ...
def even(bias: Tensor | None) -> Tensor | None:
    """The bias with rows that start at multiples of 16 bytes."""
    return (
        bias if bias is None or bias.shape[-1] % 8 == 0 else F.pad(bias, (0, -bias.shape[-1] % 8))
    )


def tensors(inputs: BackwardInputs, bias: Tensor | None) -> tuple[Tensor | None, ...]:
    """What every kernel of a backward pass reads, in their arguments' order."""
    term, factor = inputs.mask or (None, None)
    return inputs.q, inputs.k, inputs.v, bias, term, factor, inputs.do, inputs.lse, inputs.delta


def eighths(t: Tensor) -> tuple[int, ...]:
    """Strides of a `[B, R, N, H, D]` view as the kernels take them."""
    return tuple(s // 8 for s in t.stride()[:4])


def eighth(term: Tensor | None) -> int:
    """The stride of a mask's rows, likewise."""
    return 0 if term is None else term.stride(0) // 8


def bias_strides(bias: Tensor | None) -> tuple[int, ...]:
    """Strides of `[B, H, N, N]`, likewise; zeros without a bias."""
    return (0, 0, 0) if bias is None else tuple(s // 8 for s in bias.stride()[:3])

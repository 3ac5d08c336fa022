"""`biased_attention` in plain PyTorch, and the inputs that its kernels are tested with.

Letters: R rows that attend, N positions of a row, H heads, D head width.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from evofeed.kernels.ops.softmax.reference import masked_softmax
from evofeed.kernels.runtime.cases import Case, Cases, Draw

__all__ = ["biased_attention"]


def biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale * q k^T + bias, masked) v over the positions of each row.

    Args:
        q: `[B, R, N, H, D]`, float32, bfloat16 or float16; D up to 64.
        k: likewise.
        v: likewise.
        bias: `[B, H, N, N]`, shared by the R rows, or None.
        mask: `[B, R, N]`, 1 where a key may be attended to, else 0, or None. A row
            without a valid key attends uniformly to all N, as in AF2.
        scale: factor of the dot products, 1/sqrt(D) if None.

    Returns:
        `[B, R, N, H, D]` in q's dtype; gradients reach q, k, v and bias.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, torch.float32)
    s = torch.einsum("binhd,bimhd->bihnm", q, k).to(dtype) * scale
    p = masked_softmax(s, mask, bias).to(q.dtype)
    return torch.einsum("bihnm,bimhd->binhd", p, v)


def _case(draw: Draw, width: int, biased: bool, masked: bool) -> Case:
    S, R, H = draw.sequences, draw.residues, 2
    tensors = {name: draw(1, S, R, H, width) for name in "qkv"}
    mask = draw.mask(1, S, R) if masked else None
    if mask is not None:
        mask[0, 0] = 0.0  # a row without a valid key
    return Case(
        tensors | ({"bias": 2 * draw(1, H, R, R)} if biased else {}),
        lambda op, **t: op(**t, mask=mask),
    )


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 8, False, False),
        "of a bias": lambda draw: _case(draw, 16, True, False),
        "of a mask": lambda draw: _case(draw, 16, False, True),
        "of both": lambda draw: _case(draw, 8, True, True),
    },
    {f"heads {width} wide": partial(_case, width=width, biased=True, masked=True)
     for width in (20, 32, 64)},
)  # fmt: skip

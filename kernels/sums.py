# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Sums over rows in two steps: a kernel's programs leave one row each, one launch adds all up.

The gradients of biases and of norms of a whole op come out of one such launch, always
added in the same order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.backend import tl, triton
from evofeed.kernels.launching import launch

__all__ = ["column_sums"]

AT_ONCE = 4
LONG = 4096  # numbers of a row: a weight's gradient, not a bias's


@triton.jit
def _column_sums_kernel(
    P0, P1, P2, P3, OUT0, OUT1, OUT2, OUT3, G0, G1, G2, G3, N0, N1, N2, N3,
    BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    _sum_block(P0, OUT0, G0, N0, block, BLOCK_G, BLOCK_N)
    block -= tl.cdiv(N0, BLOCK_N)
    if COUNT > 1:
        _sum_block(P1, OUT1, G1, N1, block, BLOCK_G, BLOCK_N)
        block -= tl.cdiv(N1, BLOCK_N)
    if COUNT > 2:
        _sum_block(P2, OUT2, G2, N2, block, BLOCK_G, BLOCK_N)
        block -= tl.cdiv(N2, BLOCK_N)
    if COUNT > 3:
        _sum_block(P3, OUT3, G3, N3, block, BLOCK_G, BLOCK_N)


@triton.jit
def _sum_block(P, OUT, G, N, block, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr):
    if (block >= 0) & (block * BLOCK_N < N):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
        for first in tl.range(0, G, BLOCK_G, num_stages=4):
            g = first + tl.arange(0, BLOCK_G)
            inside = (g < G)[:, None] & (n < N)[None, :]
            total += tl.load(P + g[:, None] * N + n[None, :], mask=inside, other=0.0)
        tl.store(OUT + n, tl.sum(total, 0).to(OUT.dtype.element_ty), mask=n < N)


def column_sums(parts: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The sum over the first axis of each contiguous `[G, N]` float32 tensor, in `dtype`."""
    outs = [torch.empty(part.shape[1], dtype=dtype, device=part.device) for part in parts]
    for first in range(0, len(parts), AT_ONCE):
        some, into = parts[first : first + AT_ONCE], outs[first : first + AT_ONCE]
        count = len(some)
        spare = [None] * (AT_ONCE - count)
        sizes = [[part.shape[axis] for part in some] + [0] * len(spare) for axis in (0, 1)]
        highest = max(8, triton.next_power_of_2(max(sizes[0])))
        # long rows make programs enough; short ones are summed by few, with more rows at once
        block_g = min(highest, 32 if max(sizes[1]) >= LONG else 128)
        block_n = 4096 // block_g
        launch(
            _column_sums_kernel, (sum(triton.cdiv(n, block_n) for n in sizes[1]),),
            (*some, *spare, *into, *spare, *sizes[0], *sizes[1]),
            {"BLOCK_G": block_g, "BLOCK_N": block_n, "COUNT": count, "num_warps": 8},
        )  # fmt: skip
    return outs

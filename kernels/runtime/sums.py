# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Sums over rows in two steps: each program of a kernel writes a row, and one launch adds the rows.

One such launch computes the gradients of all biases and norms of an op, always added in the same
order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.runtime.backend import tl, triton
from evofeed.kernels.runtime.launching import launch

MAX_PARTS = 4  # tensors of a launch
BLOCK = 4096  # numbers of a tile
BUSY = 128  # programs that keep a card busy
LONG = 4096  # numbers of a row: a weight's gradient, not a bias's


@triton.jit
def column_sums_kernel(
    P0, P1, P2, P3, OUT0, OUT1, OUT2, OUT3, G0, G1, G2, G3, N0, N1, N2, N3,
    ROWS0: tl.constexpr, ROWS1: tl.constexpr, ROWS2: tl.constexpr, ROWS3: tl.constexpr,
    COLS0: tl.constexpr, COLS1: tl.constexpr, COLS2: tl.constexpr, COLS3: tl.constexpr,
    COUNT: tl.constexpr,
):  # fmt: skip
    """OUTn = the sums over the rows of Pn, for COUNT of them, by tiles of ROWSn x COLSn."""
    block = _sum_block(P0, OUT0, G0, N0, tl.program_id(0), ROWS0, COLS0)
    if COUNT > 1:
        block = _sum_block(P1, OUT1, G1, N1, block, ROWS1, COLS1)
    if COUNT > 2:
        block = _sum_block(P2, OUT2, G2, N2, block, ROWS2, COLS2)
    if COUNT > 3:
        block = _sum_block(P3, OUT3, G3, N3, block, ROWS3, COLS3)


@triton.jit
def _sum_block(P, OUT, G, N, block, BLOCK_G: tl.constexpr, BLOCK_N: tl.constexpr):
    """Sums this program's block of columns, if it is one of P's; returns its number after P's."""
    if (block >= 0) & (block * BLOCK_N < N):
        n = block * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros([BLOCK_G, BLOCK_N], tl.float32)
        for first in tl.range(0, G, BLOCK_G, num_stages=4):
            g = first + tl.arange(0, BLOCK_G)
            inside = (g < G)[:, None] & (n < N)[None, :]
            total += tl.load(P + g.to(tl.int64)[:, None] * N + n[None, :], mask=inside, other=0.0)
        tl.store(OUT + n, tl.sum(total, 0).to(OUT.dtype.element_ty), mask=n < N)
    return block - tl.cdiv(N, BLOCK_N)


def _block(part: Tensor) -> tuple[int, int]:
    """Rows and columns of a program's tile.

    Long rows make enough programs, with so few rows a tile that a thread holds a whole column and
    threads need not exchange sums (33 x 65536 twice: 20 -> 10 us); short rows are summed by few
    programs, with more rows a tile. Rows of 16,384 numbers would make 32 programs of 512.
    """
    G, N = part.shape
    rows = 8 if N >= LONG else max(8, min(triton.next_power_of_2(G), 128))
    return rows, 128 if LONG <= N < BUSY * BLOCK // rows else BLOCK // rows


def column_sums(parts: list[Tensor], *dtypes: torch.dtype) -> list[Tensor]:
    """The sum over the first axis of each contiguous `[G, N]` float32 tensor.

    Args:
        parts: the tensors.
        dtypes: of the sums; the last one is that of all further sums.
    """
    dtypes += dtypes[-1:] * (len(parts) - len(dtypes))
    outs = [
        torch.empty(part.shape[1], dtype=dtype, device=part.device)
        for part, dtype in zip(parts, dtypes, strict=True)
    ]
    for first in range(0, len(parts), MAX_PARTS):
        group, sums = parts[first : first + MAX_PARTS], outs[first : first + MAX_PARTS]
        count = len(group)
        spare = [None] * (MAX_PARTS - count)
        sizes = [[part.shape[axis] for part in group] + [0] * len(spare) for axis in (0, 1)]
        shapes = [_block(part) for part in group]
        blocks = sum(
            triton.cdiv(part.shape[1], n) for part, (_, n) in zip(group, shapes, strict=True)
        )
        shapes += [(1, 1)] * len(spare)
        launch(
            column_sums_kernel, (blocks,), (*group, *spare, *sums, *spare, *sizes[0], *sizes[1]),
            {**{f"ROWS{n}": rows for n, (rows, _) in enumerate(shapes)},
             **{f"COLS{n}": cols for n, (_, cols) in enumerate(shapes)},
             "COUNT": count, "num_warps": 4},
        )  # fmt: skip
    return outs

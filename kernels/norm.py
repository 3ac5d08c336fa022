# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""Layer norm over a short last axis: one pass forward, one pass and a small sum backward.

Statistics are float32 whatever the storage types; there are no atomics, so two
runs give equal bits. The input may be any view whose last axis is contiguous
and whose other axes collapse to two strides (a transposed MSA is one).

Letters: M rows, C channels, G programs of the backward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.backend import sm_count, tl, triton, usable
from evofeed.kernels.choices import small_norm, tile

__all__ = ["layer_norm", "sum_partials", "supported"]

MAX_CHANNELS = 8192  # one row must fit one tile


@triton.jit
def _forward_kernel(
    X, W, B, Y, MEAN, RSTD, M, n1, s0, s1, C, eps,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_C)
    row_in, col_in = rows < M, cols < C
    inside = row_in[:, None] & col_in[None, :]
    start = (rows // n1).to(tl.int64) * s0 + (rows % n1).to(tl.int64) * s1
    x = tl.load(X + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, 1) / C
    centred = tl.where(col_in[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + eps)
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    y = centred * rstd[:, None] * w[None, :] + b[None, :]
    out = rows.to(tl.int64)[:, None] * C + cols[None, :]
    tl.store(Y + out, y.to(Y.dtype.element_ty), mask=inside)
    tl.store(MEAN + rows, mean, mask=row_in)
    tl.store(RSTD + rows, rstd, mask=row_in)


@triton.jit
def _backward_kernel(
    DY, X, W, B, MEAN, RSTD, RES, DX, NORMED, PARTIAL, M, n1, s0, s1, C, tiles_per_program,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, HAS_RES: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """DX = gradient of X, plus RES; with KEEP also the forward result again, in NORMED."""
    program = tl.program_id(0)
    cols = tl.arange(0, BLOCK_C)
    col_in = cols < C
    w = tl.load(W + cols, mask=col_in, other=0.0).to(tl.float32)
    if KEEP:
        b = tl.load(B + cols, mask=col_in, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    db = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for step in range(tiles_per_program):
        rows = (step * tl.num_programs(0) + program) * BLOCK_M + tl.arange(0, BLOCK_M)
        row_in = rows < M
        inside = row_in[:, None] & col_in[None, :]
        start = (rows // n1).to(tl.int64) * s0 + (rows % n1).to(tl.int64) * s1
        flat = rows.to(tl.int64)[:, None] * C + cols[None, :]
        x = tl.load(X + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(DY + flat, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(MEAN + rows, mask=row_in, other=0.0)
        rstd = tl.load(RSTD + rows, mask=row_in, other=0.0)
        xhat = tl.where(inside, (x - mean[:, None]) * rstd[:, None], 0.0)
        g = dy * w[None, :]
        mean_g = tl.sum(g, 1) / C
        mean_gx = tl.sum(g * xhat, 1) / C
        dx = rstd[:, None] * (g - mean_g[:, None] - xhat * mean_gx[:, None])
        if HAS_RES:
            dx += tl.load(RES + flat, mask=inside, other=0.0).to(tl.float32)
        tl.store(DX + flat, dx.to(DX.dtype.element_ty), mask=inside)
        if KEEP:
            normed = xhat * w[None, :] + b[None, :]
            tl.store(NORMED + flat, normed.to(NORMED.dtype.element_ty), mask=inside)
        dw += dy * xhat
        db += dy
    tl.store(PARTIAL + program * 2 * C + cols, tl.sum(dw, 0), mask=col_in)
    tl.store(PARTIAL + (program * 2 + 1) * C + cols, tl.sum(db, 0), mask=col_in)


@triton.jit
def _sum_partials_kernel(
    PARTIAL, DW, DB, G, C, BLOCK_G: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    """Sum of the G partial rows, in a fixed order; columns [0, C) are dw, [C, 2C) db."""
    cols = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    col_in = cols < 2 * C
    total = tl.zeros([BLOCK_G, BLOCK_C], tl.float32)
    for first in range(0, G, BLOCK_G):
        rows = first + tl.arange(0, BLOCK_G)
        inside = (rows < G)[:, None] & col_in[None, :]
        total += tl.load(PARTIAL + rows[:, None] * 2 * C + cols[None, :], mask=inside, other=0.0)
    result = tl.sum(total, 0)
    tl.store(DW + cols, result.to(DW.dtype.element_ty), mask=cols < C)
    tl.store(DB + cols - C, result.to(DB.dtype.element_ty), mask=(cols >= C) & col_in)


def rows_and_strides(x: Tensor) -> tuple[Tensor, int, int, int]:
    """`x` (copied only if need be), inner row count n1 and the two row strides s0, s1.

    Row r of the flattened leading axes starts at `(r // n1) * s0 + (r % n1) * s1`.
    """
    C = x.shape[-1]
    if x.is_contiguous():
        return x, max(1, x.numel() // max(C, 1)), 0, C
    axes = [(n, s) for n, s in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n != 1]
    merged: list[tuple[int, int]] = []
    for n, s in axes:
        if merged and merged[-1][1] == n * s:
            merged[-1] = (merged[-1][0] * n, s)
        else:
            merged.append((n, s))
    if x.stride(-1) == 1 and len(merged) == 2:
        return x, merged[1][0], merged[0][1], merged[1][1]
    if x.stride(-1) == 1 and len(merged) == 1:
        return x, merged[0][0], 0, merged[0][1]
    x = x.contiguous()
    return x, max(1, x.numel() // max(C, 1)), 0, C


def _tile(op: str, C: int) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, warps, and programs per multiprocessor (backward)."""
    block_c = max(16, triton.next_power_of_2(C))
    choice = tile(op, C, torch.bfloat16)  # the same for float32: nothing is multiplied here
    return max(1, choice.rows * 128 // block_c), block_c, choice.warps, choice.columns


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        C = x.shape[-1]
        x, n1, s0, s1 = rows_and_strides(x)
        M = x.numel() // C
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
        block_m, block_c, warps, _ = _tile("norm_forward", C)
        _forward_kernel[(triton.cdiv(M, block_m),)](
            x, weight, bias, y, stats[0], stats[1], M, n1, s0, s1, C, eps,
            BLOCK_M=block_m, BLOCK_C=block_c, num_warps=warps,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, stats)
        ctx.rows = (n1, s0, s1)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, stats = ctx.saved_tensors
        dx, dw, db = layer_norm_backward(dy.contiguous(), x, weight, bias, stats, ctx.rows)
        return dx, dw, db, None


def layer_norm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    stats: Tensor,
    rows: tuple[int, int, int],
    residual: Tensor | None = None,
    normed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias.

    Args:
        dy: gradient of the result, contiguous.
        x, weight, bias: the forward pass's inputs.
        stats: mean and 1/std of each row, `[2, M]`.
        rows: as `rows_and_strides` gave them for x.
        residual: contiguous, added to the gradient of x, or None.
        normed: filled with the forward pass's result again, if given.
    """
    C = x.shape[-1]
    M = x.numel() // C
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block_m, block_c, warps, waves = _tile("norm_backward", C)
    tiles = triton.cdiv(M, block_m)
    programs = min(tiles, waves * sm_count(x))
    partial = torch.empty((programs, 2, C), dtype=torch.float32, device=x.device)
    _backward_kernel[(programs,)](
        dy, x, weight, bias, stats[0], stats[1], residual, dx, normed, partial, M, *rows, C,
        triton.cdiv(tiles, programs), BLOCK_M=block_m, BLOCK_C=block_c,
        HAS_RES=residual is not None, KEEP=normed is not None, num_warps=warps,
    )  # fmt: skip
    dw, db = sum_partials(partial, weight.dtype)
    return dx, dw, db.to(bias.dtype)


def sum_partials(partial: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums over the first axis of `[G, 2, C]`: gradients of a norm's weight and bias."""
    programs, _, C = partial.shape
    sums = torch.empty((2, C), dtype=dtype, device=partial.device)
    _sum_partials_kernel[(triton.cdiv(2 * C, 8),)](
        partial, sums[0], sums[1], programs, C, BLOCK_G=512, BLOCK_C=8, num_warps=4
    )
    return sums[0], sums[1]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, times weight plus bias; statistics in float32.

    Args:
        x: `[..., C]`, float32, bfloat16 or float16, any strides.
        weight: `[C]`, of any float type.
        bias: `[C]`, of any float type.
        eps: added to the variance.

    Returns:
        A contiguous tensor of x's shape and dtype (also under autocast). Where no
        kernel can run (CPU, no Triton, float64, C > 8192) or pay, PyTorch computes it.
    """
    C = x.shape[-1]
    if x.numel() == 0 or not supported(x, weight, bias):
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, (C,), weight.to(x.dtype), bias.to(x.dtype), eps)
    return _LayerNorm.apply(x, weight, bias, eps)  # type: ignore[no-any-return]


def supported(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernel takes this input and is worth its launch."""
    if weight is None or bias is None or x.dtype is torch.float64:
        return False
    if x.is_cuda and x.numel() < small_norm():
        return False
    return x.shape[-1] <= MAX_CHANNELS and usable(x, weight, bias)

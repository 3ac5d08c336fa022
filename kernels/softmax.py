# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""softmax(x + mask bias + pair bias) with the bias gradient, for code that keeps its own logits.

A program owns some lines of the bias and walks over the rows that share them:
the bias is read once, and its gradient is summed in registers and stored once.

Letters: B batch, R rows that attend, H heads, Q queries, K keys.
"""

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.backend import sm_count, tl, triton, usable
from evofeed.kernels.checks import check_shape, check_type
from evofeed.kernels.choices import tile
from evofeed.kernels.launching import launch
from evofeed.kernels.library import operator
from evofeed.kernels.projection import padded

__all__ = ["masked_softmax"]

MAX_KEYS = 4096
_MASKED = tl.constexpr(-1.0e9)


@triton.jit
def _forward_kernel(
    X, MASK, BIAS, Y, ms_b, ms_r, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    inside = (q < Q)[:, None] & (k < K)[None, :]
    if HAS_BIAS:
        line = BIAS + ((b * H + h) * Q + q)[:, None] * K + k[None, :]
        bias = tl.load(line, mask=inside, other=0.0).to(tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q)[:, None] * K + k[None, :]
        s = tl.load(X + at, mask=inside, other=0.0).to(tl.float32)
        if HAS_BIAS:
            s += bias
        if HAS_MASK:
            mask = tl.load(MASK + b * ms_b + row * ms_r + k, mask=k < K, other=1.0)
            s = tl.where(mask.to(tl.float32)[None, :] > 0.5, s, _MASKED)
        s = tl.where((k < K)[None, :], s, float("-inf"))
        p = tl.exp(s - tl.max(s, 1)[:, None])
        p /= tl.sum(p, 1)[:, None]
        tl.store(Y + at, p.to(Y.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kernel(
    Y, DY, DX, PARTIAL, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, HAS_BIAS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k = tl.arange(0, BLOCK_K)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    inside = (q < Q)[:, None] & (k < K)[None, :]
    db = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q)[:, None] * K + k[None, :]
        p = tl.load(Y + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(DY + at, mask=inside, other=0.0).to(tl.float32)
        ds = p * (dy - tl.sum(p * dy, 1)[:, None])
        tl.store(DX + at, ds.to(DX.dtype.element_ty), mask=inside)
        db += ds
    if HAS_BIAS:
        slab = (b * tl.num_programs(2) + tl.program_id(2)) * H + h
        tl.store(PARTIAL + (slab * Q + q)[:, None] * K + k[None, :], db, mask=inside)


def _grid(op: str, x: Tensor) -> tuple[tuple[int, int, int], int, dict[str, int]]:
    """Grid, rows a program walks over, and its tile."""
    B, R, H, Q, K = x.shape
    block = tile(op, K, torch.bfloat16)  # the same for float32: nothing is multiplied here
    block_k = padded(K)
    block_q = max(1, block.rows * 256 // block_k)
    lines = triton.cdiv(Q, block_q)
    splits = max(1, min(R, block.programs * sm_count(x) // (lines * B * H)))
    rows_each = triton.cdiv(R, splits)
    options = {
        "BLOCK_Q": block_q, "BLOCK_K": block_k, "STAGES": block.stages, "num_warps": block.warps
    }  # fmt: skip
    return (lines, B * H, triton.cdiv(R, rows_each)), rows_each, options


@operator("masked_softmax")
class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        grid, rows_each, options = _grid("softmax", x)
        mask = None if mask is None else mask.contiguous()
        strides = (0, 0) if mask is None else mask.stride()[:2]
        launch(
            _forward_kernel, grid,
            (x, mask, None if bias is None else bias.contiguous(), y, *strides, *x.shape[1:],
             rows_each),
            {"HAS_BIAS": bias is not None, "HAS_MASK": mask is not None, **options},
        )  # fmt: skip
        ctx.save_for_backward(y)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        dx, has_bias = torch.empty_like(y), ctx.bias_dtype is not None
        grid, rows_each, options = _grid("softmax_grad", y)
        B, _, H, Q, K = y.shape
        partial = None
        if has_bias:
            partial = y.new_empty((B, grid[2], H, Q, K), dtype=torch.float32)
        launch(
            _backward_kernel, grid, (y, dy.contiguous(), dx, partial, *y.shape[1:], rows_each),
            {"HAS_BIAS": has_bias, **options},
        )  # fmt: skip
        return dx, None, None if partial is None else partial.sum(1).to(ctx.bias_dtype)


def masked_softmax(x: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax over keys of x + bias, masked keys at -1e9.

    Args:
        x: logits `[B, R, H, Q, K]`.
        mask: `[B, R, K]`, 1 where a key may be attended to, or None.
        bias: `[B, H, Q, K]`, shared by the R rows, or None.

    Returns:
        Weights of x's shape and dtype; gradients reach x and bias.
    """
    B, R, H, Q, K = x.shape
    check_type("masked_softmax", x, double=True)
    check_shape("masked_softmax", "mask", mask, B, R, K)
    check_shape("masked_softmax", "bias", bias, B, H, Q, K)
    if x.shape[-1] > MAX_KEYS or x.dtype is torch.float64 or not usable(x, mask, bias):
        return reference.masked_softmax(x, mask, bias)
    return _MaskedSoftmax.apply(x, mask, bias)  # type: ignore[no-any-return]

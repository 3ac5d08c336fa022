# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc"
"""softmax(x + mask bias + pair bias) with the bias gradient, for code that keeps its own logits.

A program owns some lines of the bias and walks over the rows that share them:
the bias is read once, and its gradient is summed in registers and stored once.
A tile's width must be a power of two: 384 keys are three tiles of 128, not one of 512.

Letters: B batch, R rows that attend, H heads, Q queries, K keys.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from evofeed.kernels import reference
from evofeed.kernels.runtime.backend import sm_count, tl, triton, usable
from evofeed.kernels.runtime.checks import check_shape, check_type
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import Operator

__all__ = ["masked_softmax"]

MAX_KEYS = 4096
_MASKED = tl.constexpr(-1.0e9)


@triton.jit
def _logits(
    X, MASK, bias, at, keys, lines_in, K, HAS_BIAS: tl.constexpr, HAS_MASK: tl.constexpr
):  # fmt: skip
    """Biased logits of some keys, -inf after the last key. `at` and `MASK`: of a row's key 0."""
    inside = lines_in[:, None] & (keys < K)[None, :]
    s = tl.load(X + at[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        s += bias
    if HAS_MASK:
        mask = tl.load(MASK + keys, mask=keys < K, other=1.0)
        s = tl.where(mask.to(tl.float32)[None, :] > 0.5, s, _MASKED)
    return tl.where((keys < K)[None, :], s, float("-inf"))


@triton.jit
def _rows_of(TENSOR, at, keys, lines_in, K):
    inside = lines_in[:, None] & (keys < K)[None, :]
    return tl.load(TENSOR + at[:, None] + keys[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _store_rows(TENSOR, at, keys, lines_in, K, value):
    inside = lines_in[:, None] & (keys < K)[None, :]
    place = TENSOR + at[:, None] + keys[None, :]
    tl.store(place, value.to(TENSOR.dtype.element_ty), mask=inside)


@triton.jit
def softmax_forward_kernel(
    X, MASK, BIAS, Y, ms_b, ms_r, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREE: tl.constexpr, HAS_BIAS: tl.constexpr,
    HAS_MASK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k0 = tl.arange(0, BLOCK_K)
    k1, k2 = k0 + BLOCK_K, k0 + 2 * BLOCK_K
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    bias0, bias1, bias2 = None, None, None
    if HAS_BIAS:
        line = ((b * H + h) * Q + q) * K
        bias0 = _rows_of(BIAS, line, k0, lines_in, K)
        if THREE:
            bias1 = _rows_of(BIAS, line, k1, lines_in, K)
            bias2 = _rows_of(BIAS, line, k2, lines_in, K)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        mask = MASK + b * ms_b + (b * 0 + row) * ms_r if HAS_MASK else MASK  # in b's 64 bits
        s0 = _logits(X, mask, bias0, at, k0, lines_in, K, HAS_BIAS, HAS_MASK)
        most = tl.max(s0, 1)
        if THREE:
            s1 = _logits(X, mask, bias1, at, k1, lines_in, K, HAS_BIAS, HAS_MASK)
            s2 = _logits(X, mask, bias2, at, k2, lines_in, K, HAS_BIAS, HAS_MASK)
            most = tl.max(tl.maximum(tl.maximum(s0, s1), s2), 1)
        p0 = tl.exp(s0 - most[:, None])
        total = p0
        if THREE:
            p1, p2 = tl.exp(s1 - most[:, None]), tl.exp(s2 - most[:, None])
            total = p0 + p1 + p2
        share = (1.0 / tl.sum(total, 1))[:, None]
        _store_rows(Y, at, k0, lines_in, K, p0 * share)
        if THREE:
            _store_rows(Y, at, k1, lines_in, K, p1 * share)
            _store_rows(Y, at, k2, lines_in, K, p2 * share)


@triton.jit
def softmax_backward_kernel(
    Y, DY, DX, PARTIAL, R, H, Q, K, rows_each,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, THREE: tl.constexpr, HAS_BIAS: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    k0 = tl.arange(0, BLOCK_K)
    k1, k2 = k0 + BLOCK_K, k0 + 2 * BLOCK_K
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    lines_in = q < Q
    db0 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    if THREE:
        db1 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        db2 = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    last = tl.minimum((tl.program_id(2) + 1) * rows_each, R)
    for row in tl.range(tl.program_id(2) * rows_each, last, num_stages=STAGES):
        at = (((b * R + row) * H + h) * Q + q) * K
        p0, g0 = _rows_of(Y, at, k0, lines_in, K), _rows_of(DY, at, k0, lines_in, K)
        total = p0 * g0
        if THREE:
            p1, g1 = _rows_of(Y, at, k1, lines_in, K), _rows_of(DY, at, k1, lines_in, K)
            p2, g2 = _rows_of(Y, at, k2, lines_in, K), _rows_of(DY, at, k2, lines_in, K)
            total += p1 * g1 + p2 * g2
        delta = tl.sum(total, 1)[:, None]
        ds0 = p0 * (g0 - delta)
        _store_rows(DX, at, k0, lines_in, K, ds0)
        db0 += ds0
        if THREE:
            ds1, ds2 = p1 * (g1 - delta), p2 * (g2 - delta)
            _store_rows(DX, at, k1, lines_in, K, ds1)
            _store_rows(DX, at, k2, lines_in, K, ds2)
            db1 += ds1
            db2 += ds2
    if HAS_BIAS:
        slab = (((b * tl.num_programs(2) + tl.program_id(2)) * H + h) * Q + q) * K
        _store_rows(PARTIAL, slab, k0, lines_in, K, db0)
        if THREE:
            _store_rows(PARTIAL, slab, k1, lines_in, K, db1)
            _store_rows(PARTIAL, slab, k2, lines_in, K, db2)


def _grid(op: str, x: Tensor) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
    """Grid, rows a program walks over, and its tile."""
    B, R, H, Q, K = x.shape
    block = tile(op, K, torch.bfloat16)  # the same for float32: nothing is multiplied here
    block_k = padded(K)
    block_q = max(1, block.rows * 256 // block_k)
    lines = triton.cdiv(Q, block_q)
    splits = max(1, min(R, block.programs * sm_count(x) // (lines * B * H)))
    rows_each = triton.cdiv(R, splits)
    three = block_k >= 64 and 3 * block_k // 4 >= K
    options = {
        "BLOCK_Q": block_q, "BLOCK_K": block_k // 4 if three else block_k, "THREE": three,
        "STAGES": block.stages, "num_warps": block.warps,
    }  # fmt: skip
    return (lines, B * H, triton.cdiv(R, rows_each)), rows_each, options


class _MaskedSoftmax(Operator, name="masked_softmax"):
    options = "bool has_bias"
    keeps_result = True

    @staticmethod
    def forward(tensors: Sequence[Any], has_bias: bool) -> list[Tensor]:
        x, mask, bias = tensors
        y = torch.empty_like(x)
        grid, rows_each, options = _grid("softmax", x)
        mask = None if mask is None else mask.contiguous()
        strides = (0, 0) if mask is None else mask.stride()[:2]
        launch(
            softmax_forward_kernel, grid,
            (x, mask, None if bias is None else bias.contiguous(), y, *strides, *x.shape[1:],
             rows_each),
            {"HAS_BIAS": has_bias, "HAS_MASK": mask is not None, **options},
        )  # fmt: skip
        return [y]

    @staticmethod
    def forward_fake(tensors: Sequence[Any], has_bias: bool) -> list[Tensor]:
        return [torch.empty_like(tensors[0])]

    @staticmethod
    def backward(tensors: Sequence[Any], has_bias: bool) -> list[Tensor | None]:
        dy, y = tensors
        dx = torch.empty_like(y)
        grid, rows_each, options = _grid("softmax_grad", y)
        B, _, H, Q, K = y.shape
        partial = None
        if has_bias:
            partial = y.new_empty((B, grid[2], H, Q, K), dtype=torch.float32)
        launch(
            softmax_backward_kernel, grid,
            (y, dy.contiguous(), dx, partial, *y.shape[1:], rows_each),
            {"HAS_BIAS": has_bias, **options},
        )  # fmt: skip
        return [dx, None if partial is None else partial.sum(1)]

    @staticmethod
    def backward_fake(tensors: Sequence[Any], has_bias: bool) -> list[Tensor | None]:
        y = tensors[1]
        B, _, H, Q, K = y.shape
        db = y.new_empty((B, H, Q, K), dtype=torch.float32) if has_bias else None
        return [torch.empty_like(y), db]

    @staticmethod
    def gradients(
        grad: Tensor, found: Sequence[Any], kinds: Sequence[torch.dtype | None], *options: Any
    ) -> list[Tensor | None]:
        dx, db = found
        return [dx, None, db]


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
    return _MaskedSoftmax.apply((bias is not None,), x.contiguous(), mask, bias)

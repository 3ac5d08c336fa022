"""softmax(x + mask bias + pair bias) with the bias gradient, for code with its own logits.

Letters: B batch, R rows that attend, H heads, Q queries, K keys.
"""

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.softmax import reference
from evofeed.kernels.ops.softmax.triton import softmax_backward_kernel, softmax_forward_kernel
from evofeed.kernels.runtime.backend import launchable, sm_count, triton
from evofeed.kernels.runtime.checks import FusedResult, check_shape, falls_back_to
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import tile
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors

MAX_KEYS = 4096


def _grid(op: str, x: Tensor) -> tuple[tuple[int, int, int], int, dict[str, Any]]:
    """Grid, rows of a program, and its compile-time arguments."""
    B, R, H, Q, K = x.shape
    block = tile(op, K, torch.bfloat16)  # also for float32, without products
    block_k = padded(K)
    block_q = max(1, block.rows * 256 // block_k)
    lines = triton.cdiv(Q, block_q)
    splits = max(1, min(R, block.programs * sm_count(x) // (lines * B * H)))
    rows_each = triton.cdiv(R, splits)
    options = {
        "BLOCK_Q": block_q, "BLOCK_K": block_k, "STAGES": block.stages, "num_warps": block.warps,
    }  # fmt: skip
    return (lines, B * H, triton.cdiv(R, rows_each)), rows_each, options


class _MaskedSoftmax(Operator, name="masked_softmax"):
    options = "bool has_bias"
    saves_result = True

    @staticmethod
    def forward(tensors: Tensors, has_bias: bool) -> Results:
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
    def backward(tensors: Tensors, has_bias: bool) -> Results:
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
        return [dx, None, None if partial is None else partial.sum(1)]


@falls_back_to(reference.masked_softmax)
def masked_softmax(x: Tensor, mask: Tensor | None, bias: Tensor | None) -> FusedResult:
    """softmax over keys of x + bias, masked keys at -1e9."""
    B, R, H, Q, K = x.shape
    check_shape("masked_softmax", "mask", mask, B, R, K)
    check_shape("masked_softmax", "bias", bias, B, H, Q, K)
    if x.shape[-1] > MAX_KEYS or x.dtype is torch.float64 or not launchable(x, mask, bias):
        return None
    return _MaskedSoftmax.apply((bias is not None,), x.contiguous(), mask, bias)

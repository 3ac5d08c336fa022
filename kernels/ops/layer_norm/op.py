"""Layer norm over a short last axis: one pass forward, one pass backward.

Statistics are float32 for all storage types; sums have a fixed order, so two runs give equal
bits.

Letters: M rows, C channels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.triton import norm_backward_kernel, norm_forward_kernel
from evofeed.kernels.runtime.backend import launchable, sm_count, triton, without_autocast
from evofeed.kernels.runtime.checks import check_one_device, check_shape, check_type
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import Tile, small_norm, tile
from evofeed.kernels.runtime.torch_library import Operator, Results, Tensors, uses_custom_ops

MAX_CHANNELS = 8192  # one row must fit one tile
CACHED = 3 << 23
"""Bytes up to which the first rows are still cached when the backward pass begins; of larger
tensors the last rows are."""


def _tile(op: str, x: Tensor) -> tuple[Tile, dict[str, Any]]:
    """The tile of a kernel, with its rows for 128 channels, and its compile-time arguments."""
    C, wide = x.shape[-1], "_float32" if x.dtype is torch.float32 else ""
    choice = tile(op + wide, C, torch.bfloat16)  # float32 tiles of `tile` are for products
    block_c = padded(C)
    rows = max(1, choice.rows * 128 // block_c)
    return choice, {
        "BLOCK_M": rows, "BLOCK_C": block_c, "EVEN": block_c == C, "num_warps": choice.warps,
    }  # fmt: skip


def _normalised(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, keep: bool
) -> tuple[Tensor, Tensor | None]:
    """The result, and with `keep` the rows' means and 1/std for a backward pass."""
    C = x.shape[-1]
    M, y = x.numel() // C, torch.empty_like(x)
    stats = x.new_empty((2, M), dtype=torch.float32) if keep else None
    _, sizes = _tile("norm_forward", x)
    launch(
        norm_forward_kernel, (triton.cdiv(M, sizes["BLOCK_M"]),),
        (x, weight, bias, y, stats, M, C, eps),
        # Threads that share a row add its squares in two orders: with a fused product their last
        # bits would differ.
        {"KEEP": keep, "enable_fp_fusion": False, **sizes},
    )  # fmt: skip
    return y, stats


class _LayerNorm(Operator, name="layer_norm"):
    options = "float eps"
    saved_inputs = (0, 1, 2)

    @staticmethod
    def forward(tensors: Tensors, eps: float) -> Results:
        x, weight, bias = tensors
        return [*_normalised(x, weight, bias, eps, True)]

    @staticmethod
    def backward(tensors: Tensors, eps: float) -> Results:
        dy, x, weight, bias, stats = tensors
        dx, partial = norm_rows_grad(dy.contiguous(), x, stats, weight, bias)
        dtype = weight.dtype if weight.dtype is bias.dtype else torch.float32
        (sums,) = column_sums([partial], dtype)
        return [dx, *sums.chunk(2)]


def norm_rows_grad(
    dy: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    normed: Tensor | None = None,
    residual_sum: bool = False,
) -> tuple[Tensor, Tensor]:
    """The gradient of the input, and partial sums of those of weight and bias.

    Args:
        dy: gradient of the result; all tensors are contiguous.
        x, weight, bias: the forward pass's inputs.
        stats: means and 1/std of the rows, M of each.
        residual: added to the gradient of x, or None.
        normed: filled with the forward pass's result again, if given.
        residual_sum: True to sum the residual's columns too.

    Returns:
        The gradient of x, and `[programs, 2 (or 3 with residual_sum) * C]` whose column sums
        are the gradients of weight and bias (and the residual's sums).
    """
    C, dx = x.shape[-1], torch.empty_like(x)
    M = x.numel() // C
    choice, sizes = _tile("norm_backward", x)
    rows = sizes["BLOCK_M"]
    # Threads go along a row first, 16 bytes each, then along the rows.
    ways = max(1, 32 * choice.warps * (16 // x.itemsize) // sizes["BLOCK_C"])
    tiles = triton.cdiv(M, rows)
    programs = min(tiles, choice.programs * sm_count(x))
    width = (3 if residual_sum else 2) * C
    partial = x.new_empty((programs, width), dtype=torch.float32)
    launch(
        norm_backward_kernel, (programs,),
        (dy, x, weight, bias, stats, residual, dx, normed, partial, M, C,
         triton.cdiv(tiles, programs)),
        {"BACKWARDS": M * C * x.itemsize > CACHED, "HAS_RES": residual is not None,
         "KEEP": normed is not None, "RES_SUM": residual_sum,
         "WAYS": min(rows, ways) if C % 16 == 0 else rows, "STAGES": choice.stages, **sizes},
    )  # fmt: skip
    return dx, partial


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, times weight plus bias; statistics in float32.

    Args:
        x: `[..., C]`, float32, bfloat16 or float16, any strides.
        weight: `[C]`, of any float type.
        bias: `[C]`, of any float type.
        eps: added to the variance.

    Returns:
        A contiguous tensor of x's shape and dtype (also under autocast). PyTorch computes it
        where no kernel can run (CPU, no Triton, float64, C > 8192) or would be slower.

    Raises:
        UnsupportedShape: weight or bias is not `[C]`, or x is not of a float type.
    """
    C = x.shape[-1]
    check_type("layer_norm", x)
    check_shape("layer_norm", "weight", weight, C)
    check_shape("layer_norm", "bias", bias, C)
    if x.numel() == 0 or not supported(x, weight, bias):
        check_one_device("layer_norm", x, weight, bias)
        if weight.dtype is not x.dtype or bias.dtype is not x.dtype:  # cheaper than `to`
            weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        with without_autocast(x):
            return F.layer_norm(x, (C,), weight, bias, eps)
    return fused_layer_norm(x, weight, bias, eps)


def fused_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """`layer_norm` of inputs that are `supported`."""
    x = x.contiguous()
    if torch.is_grad_enabled() or uses_custom_ops():
        return _LayerNorm.apply((eps,), x, weight, bias)
    return _normalised(x, weight, bias, eps, False)[0]


def supported(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """True if the kernel takes this input and is not slower than PyTorch's."""
    if weight is None or bias is None or x.dtype is torch.float64:
        return False
    C, casts = x.shape[-1], weight.dtype is not x.dtype or bias.dtype is not x.dtype
    if x.is_cuda and small_norm(x.numel() // C, C, casts=casts):
        return False
    return C <= MAX_CHANNELS and launchable(x, weight, bias)

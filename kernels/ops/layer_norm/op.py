"""Layer norm over a short last axis: one pass forward, one pass backward.

Statistics are float32 whatever the storage types; sums are made in a fixed order, so
two runs give equal bits. The input may be any view whose last axis is contiguous
and whose other axes collapse to two strides (a transposed MSA is one).

Letters: M rows, C channels.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.triton import norm_backward_kernel, norm_forward_kernel
from evofeed.kernels.runtime.backend import launchable, sm_count, without_autocast
from evofeed.kernels.runtime.checks import check_one_device, check_shape, check_type
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded
from evofeed.kernels.runtime.tiles import Tile, small_norm, tile
from evofeed.kernels.runtime.torch_library import Given, Kinds, Operator, Results, whole

MAX_CHANNELS = 8192  # one row must fit one tile


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


GROUP = 32  # rows of sums that one program adds up at a time, at most
TICKETS = 64  # one for all, one per group of programs
# Bytes up to which what the forward pass read first is still cached when backward begins;
# of more, what was read or written last is.
CACHED = 3 << 23


def _found_again(row_bytes: int) -> bool:
    """Whether backward computes the statistics again: for short rows storing them costs more."""
    return row_bytes <= 128


def _choice(op: str, x: Tensor) -> Tile:
    wide = "_float32" if x.dtype is torch.float32 else ""
    return tile(op + wide, x.shape[-1], torch.bfloat16)  # its float32 tiles are for products


def _sizes(choice: Tile, C: int) -> dict[str, Any]:
    """What both kernels are compiled for. A tile's rows are those of 128 channels."""
    block_c = padded(C)
    rows = max(1, choice.rows * 128 // block_c)
    return {
        "BLOCK_M": rows, "BLOCK_C": block_c, "EVEN": block_c == C, "num_warps": choice.warps,
    }  # fmt: skip


def _walk(choice: Tile, C: int, itemsize: int) -> dict[str, Any]:
    """What else the backward kernel is compiled for."""
    sizes = _sizes(choice, C)
    rows, threads = sizes["BLOCK_M"], 32 * choice.warps
    # Threads are along a row, 16 bytes each, and then along the rows.
    ways = min(rows, max(1, threads * (16 // itemsize) // sizes["BLOCK_C"]))
    # Float32 does best with twice the columns and half the rows at a time, 64 numbers a thread.
    wide = itemsize == 4
    chunk = min(2 * sizes["BLOCK_C"], max(256, (4 if wide else 2) * threads))
    return {
        **sizes, "WAYS": ways if C % 16 == 0 else rows, "CHUNK": chunk,
        "GROUP": min(GROUP, 64 * threads // chunk) if wide else GROUP, "STAGES": choice.stages,
    }  # fmt: skip


def _normalised(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, for_backward: bool
) -> tuple[Tensor, Tensor | None]:
    """The result; for the backward pass statistics and tickets."""
    C = x.shape[-1]
    x, n1, s0, s1 = rows_and_strides(x)
    M, plain = x.numel() // C, x.is_contiguous()
    y = torch.empty_like(x) if plain else x.new_empty(x.shape)
    keep, stats = for_backward and not _found_again(C * x.itemsize), None
    if for_backward:
        stats = x.new_empty((2 * M if keep else 0) + TICKETS, dtype=torch.float32)
    sizes = _sizes(_choice("norm_forward", x), C)
    launch(
        norm_forward_kernel, (-(-M // sizes["BLOCK_M"]),),
        (x, weight, bias, y, stats, M, n1, s0, s1, C, eps),
        # Threads that share a row sum its squares in pairs: a product contracted into one of the
        # two orders would give them different last bits.
        {"PLAIN": plain, "KEEP": keep, "TICKETS": TICKETS if for_backward else 0,
         "enable_fp_fusion": False, **sizes},
    )  # fmt: skip
    return y, stats


class _LayerNorm(Operator, name="layer_norm"):
    options = "float eps"
    kept = (0, 1, 2)

    @staticmethod
    def forward(tensors: Given, eps: float) -> Results:
        x, weight, bias = tensors
        return [*_normalised(x, weight, bias, eps, True)]

    @staticmethod
    def backward(tensors: Given, eps: float) -> Results:
        dy, x, weight, bias, stats = tensors
        sums = torch.empty_like(weight), torch.empty_like(bias)
        x, n1, s0, s1 = rows_and_strides(x)
        dx, _ = norm_rows_grad(
            dy.contiguous(), x, stats, weight, bias, rows=(n1, s0, s1), sums=sums, eps=eps
        )
        return [dx, *sums]

    @staticmethod
    def gradients(grad: Tensor, found: Given, kinds: Kinds, *options: Any) -> Sequence[Tensor]:
        return found


def norm_rows_grad(
    dy: Tensor,
    x: Tensor,
    stats: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor | None = None,
    normed: Tensor | None = None,
    residual_sum: bool = False,
    rows: tuple[int, int, int] | None = None,
    sums: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Gradient of the input, and the parts of those of weight and bias.

    Args:
        dy: gradient of the result, contiguous.
        x, weight, bias: the forward pass's inputs.
        stats: means and 1/std of the rows, M of each.
        residual: contiguous, added to the gradient of x, or None.
        normed: filled with the forward pass's result again, if given.
        residual_sum: whether the residual's columns are summed too.
        rows: as `rows_and_strides` gave them for x, unless it is `[M, C]` and contiguous.
        sums: filled with the gradients of weight and bias; `stats` then comes from this
            file's own forward pass, which readied its tickets and may hold nothing else.
        eps: of the norm, needed with `sums`.

    Returns:
        The gradient of x, and `[programs, 2 (or 3 with residual_sum) * C]` whose column sums
        are the gradients of weight and bias (and the residual's sums).
    """
    C = x.shape[-1]
    M, plain = x.numel() // C, x.is_contiguous()
    dx = torch.empty_like(x) if plain else x.new_empty(x.shape)
    choice, row_bytes, last_sums = _choice("norm_backward", x), C * x.itemsize, sums is not None
    meta = _walk(choice, C, x.itemsize)
    tiles = -(-M // meta["BLOCK_M"])
    programs = min(tiles, choice.programs * sm_count(x), meta["GROUP"] * (TICKETS - 1))
    groups = -(-programs // meta["GROUP"]) if last_sums else 0
    width = (3 if residual_sum else 2) * C
    partial = x.new_empty((programs + groups, width), dtype=torch.float32)
    launch(
        norm_backward_kernel, (programs,),
        (dy, x, weight, bias, stats, residual, dx, normed, partial, *(sums or (None, None)),
         M, *(rows or (M, 0, C)), C, eps, -(-tiles // programs)),
        {"PLAIN": plain, "HAS_STATS": not (last_sums and _found_again(row_bytes)),
         "BACKWARDS": M * row_bytes > CACHED, "HAS_RES": residual is not None,
         "KEEP": normed is not None, "RES_SUM": residual_sum, "LAST_SUMS": last_sums, **meta},
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
        A contiguous tensor of x's shape and dtype (also under autocast). Where no
        kernel can run (CPU, no Triton, float64, C > 8192) or pay, PyTorch computes it.

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
    """`layer_norm` of what is `supported`."""
    if torch.is_grad_enabled() or whole():
        return _LayerNorm.apply((eps,), x, weight, bias)
    return _normalised(x, weight, bias, eps, False)[0]


def supported(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernel takes this input and is worth its launch."""
    if weight is None or bias is None or x.dtype is torch.float64:
        return False
    C, casts = x.shape[-1], weight.dtype is not x.dtype or bias.dtype is not x.dtype
    if x.is_cuda and small_norm(x.numel() // C, C, casts=casts):
        return False
    return C <= MAX_CHANNELS and launchable(x, weight, bias)

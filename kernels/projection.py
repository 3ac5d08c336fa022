"""Launches of the projection kernels: shapes in, tensors out, no autograd.

Letters: M rows, C input channels, N output channels, H heads, L pair length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from evofeed.kernels.backend import sm_count, triton
from evofeed.kernels.choices import tile
from evofeed.kernels.norm import sum_partials
from evofeed.kernels.projection_kernels import (
    linear_dw_kernel,
    linear_kernel,
    ln_linear_dx_kernel,
    ln_linear_kernel,
    mlp_kernel,
)

__all__ = [
    "Drop",
    "linear",
    "linear_dw",
    "ln_linear",
    "ln_linear_dx",
    "mlp",
    "pack",
    "precision",
]


def precision(dtype: torch.dtype) -> str:
    """Precision of a float32 product: TF32 only where PyTorch was told to use it."""
    tf32 = dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "ieee"


def padded(size: int) -> int:
    """The tile that holds an axis: a power of two, and at least what a product takes."""
    return max(16, int(triton.next_power_of_2(size)))


def pack(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """The tensors joined along their first axis, in `dtype`."""
    joined = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return joined.to(dtype).contiguous()


@dataclass(frozen=True, slots=True)
class Drop:
    """A shared dropout mask `[B, rows, C]`, scaled by 1/(1-p), for a tensor `[B, I, J, C]`.

    Attributes:
        mask: the mask, or None for no dropout.
        sizes: I and J.
        columnwise: shared along J instead of I.
    """

    mask: Tensor | None
    sizes: tuple[int, int]
    columnwise: bool = False

    def strides(self) -> tuple[int, int, int]:
        """drop_1, drop_2, drop_rows of the kernels."""
        first, second = self.sizes
        return (
            first * second,
            second if self.columnwise else 1,
            first if self.columnwise else second,
        )


def ln_linear(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    relu: bool = False,
    mask: Tensor | None = None,
    groups: int = 1,
    pair_weight: Tensor | None = None,
    pair_length: int = 1,
    transpose_pair: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """act(layer_norm(x) weight^T + bias) * mask for x `[M, C]`.

    Args:
        x: contiguous rows.
        gamma, beta: of the norm.
        weight: `[N, C]` in the type products run in, or None for the pair bias only.
        bias: `[N]` or None.
        eps: of the norm.
        relu: whether negative results become 0.
        mask: `[M]` factor of the rows.
        groups: output channels come as `[groups, M, N / groups]`.
        pair_weight: `[H, C]`; if given, its product is the attention bias.
        pair_length: L, where M = B * L * L.
        transpose_pair: bias[i, j] comes from pair (j, i).

    Returns:
        The product, mean and 1/std `[2, M]`, and the attention bias `[B, H, L, L]` or None.
    """
    M, C = x.shape
    kind = weight if weight is not None else pair_weight
    assert kind is not None
    N = 0 if weight is None else weight.shape[0]
    group = max(1, N // groups)
    shape = (M, N) if groups == 1 else (groups, M, group)
    y = torch.empty(shape, dtype=kind.dtype, device=x.device)
    stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
    heads, pair_bias = 0, None
    if pair_weight is not None:
        heads = pair_weight.shape[0]
        batch = M // (pair_length * pair_length)
        pair_bias = torch.empty(
            (batch, heads, pair_length, pair_length), dtype=kind.dtype, device=x.device
        )
    block = tile("ln_linear", C, kind.dtype)
    ln_linear_kernel[(triton.cdiv(M, block.rows),)](
        x, gamma, beta, kind, bias, mask, y, stats, pair_weight, pair_bias,
        M, C, N, eps, C, 1, group, 1, M * group, pair_length, heads,
        BLOCK_M=block.rows, BLOCK_C=padded(C), BLOCK_N=min(block.columns, padded(group)),
        GROUP=group, BLOCK_H=max(16, triton.next_power_of_2(heads)), RELU=relu,
        HAS_BIAS=bias is not None, HAS_MASK=mask is not None, PAIR=pair_weight is not None,
        TRANSPOSE=transpose_pair, PRECISION=precision(kind.dtype), num_warps=block.warps,
        num_stages=block.stages,
    )  # fmt: skip
    return y, stats, pair_bias


def ln_linear_dx(
    dy: Tensor, weight: Tensor, x: Tensor, stats: Tensor, gamma: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x (plus `residual`), gamma and beta, from `dy` of `layer_norm(x) weight^T`.

    Args:
        dy: `[M, K]` rows (any row stride), or `[groups, M, K / groups]`.
        weight: `[K, C]`.
        x: `[M, C]` contiguous.
        stats: mean and 1/std of its rows.
        gamma: of the norm.
        residual: `[M, C]` to add to the gradient of x, or None.
    """
    M, C = x.shape
    K = weight.shape[0]
    grouped = dy.dim() == 3
    group = dy.shape[2] if grouped else K
    dx = torch.empty_like(x)
    block = tile("ln_linear_dx", C, weight.dtype)
    tiles = triton.cdiv(M, block.rows)
    programs = min(tiles, 2 * sm_count(x))
    partial = torch.empty((programs, 2, C), dtype=torch.float32, device=x.device)
    ln_linear_dx_kernel[(programs,)](
        dy, weight, x, stats, gamma, residual, dx, partial,
        M, C, K, dy.stride(-2), dy.stride(0) if grouped else 0, triton.cdiv(tiles, programs),
        BLOCK_M=block.rows, BLOCK_C=padded(C), BLOCK_K=min(block.columns, padded(group)),
        GROUP=group, HAS_RES=residual is not None, PRECISION=precision(weight.dtype),
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    dgamma, dbeta = sum_partials(partial, gamma.dtype)
    return dx, dgamma, dbeta


def linear_dw(
    dy: Tensor,
    a: Tensor,
    like: Tensor,
    *,
    norm: tuple[Tensor, Tensor, Tensor] | None = None,
    channels_first: bool = False,
    gate: Tensor | None = None,
    drop: Drop | None = None,
    columns: int | None = None,
) -> tuple[Tensor, Tensor]:
    """dW = dy^T a and the column sums of dy, both float32.

    Args:
        dy: `[M, N]` rows (any row stride), or `[groups, M, N / groups]`.
        a: `[M, C]` contiguous, or `[C, M]` with `channels_first`.
        like: a tensor of the type products run in.
        norm: (stats, gamma, beta): a is normalised first.
        channels_first: how `a` lies.
        gate: `[M, C]` rows; a is multiplied by its sigmoid first.
        drop: dropout mask that multiplies dy first.
        columns: N, if dy has padding after its columns.
    """
    grouped = dy.dim() == 3
    group = dy.shape[2] if grouped else (columns or dy.shape[1])
    N = group * dy.shape[0] if grouped else group
    M = dy.shape[-2]
    C = a.shape[0] if channels_first else a.shape[1]
    block = tile("linear_dw", C, like.dtype)
    block_m = block.rows
    block_n, block_c = min(block.columns, padded(group)), min(block.columns, padded(C))
    tiles = triton.cdiv(N, block_n) * triton.cdiv(C, block_c)
    splits = max(1, min(triton.cdiv(M, block_m), (2 * sm_count(dy)) // tiles))
    rows_each = triton.cdiv(triton.cdiv(M, splits), block_m) * block_m
    splits = triton.cdiv(M, rows_each)
    partial_w = torch.empty((splits, N, C), dtype=torch.float32, device=dy.device)
    partial_b = torch.empty((splits, N), dtype=torch.float32, device=dy.device)
    stats, gamma, beta = norm or (None, None, None)
    has_drop = drop is not None and drop.mask is not None
    grid = (triton.cdiv(N, block_n), triton.cdiv(C, block_c), splits)
    linear_dw_kernel[grid](
        dy, a, like, gate, stats, gamma, beta, drop.mask if drop else None, partial_w, partial_b,
        M, N, C, dy.stride(-2), dy.stride(0) if grouped else 0,
        1 if channels_first else a.stride(0), a.stride(0) if channels_first else 1,
        gate.stride(0) if gate is not None else 0, *(drop.strides() if drop else (1, 1, 1)),
        rows_each, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_C=block_c, GROUP=group,
        NORM=norm is not None, GATED=gate is not None, HAS_DROP=has_drop,
        PRECISION=precision(like.dtype), num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    if splits == 1:
        return partial_w[0], partial_b[0]
    return partial_w.sum(0), partial_b.sum(0)


def linear(
    a: Tensor, b: Tensor, *, bias: Tensor | None = None, relu_of: Tensor | None = None
) -> Tensor:
    """a b + bias for `[M, K]` and `[K, N]`, zero where `relu_of` is not positive."""
    M, K = a.shape
    N = b.shape[1]
    y = torch.empty((M, N), dtype=b.dtype, device=a.device)
    block = tile("linear", N, b.dtype)
    block_n, block_k = min(block.columns, padded(N)), min(64, block.columns, padded(K))
    linear_kernel[(triton.cdiv(M, block.rows) * triton.cdiv(N, block_n),)](
        a, b, bias, relu_of, y, M, N, K, a.stride(0), b.stride(0), b.stride(1),
        BLOCK_M=block.rows, BLOCK_N=block_n, BLOCK_K=block_k, HAS_BIAS=bias is not None,
        RELU_GRAD=relu_of is not None, PRECISION=precision(b.dtype),
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    return y


def mlp(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    eps: float,
    mask: Tensor | None,
    residual: bool,
) -> tuple[Tensor, Tensor]:
    """mask * (relu(layer_norm(x) w1^T + b1) w2^T + b2), plus x if `residual`; also the stats."""
    M, C = x.shape
    N = w1.shape[0]
    out = torch.empty_like(x)
    stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
    block = tile("mlp", C, w1.dtype)
    mlp_kernel[(triton.cdiv(M, block.rows),)](
        x, gamma, beta, w1, b1, w2, b2, mask, out, stats, M, C, N, eps,
        BLOCK_M=block.rows, BLOCK_C=padded(C), BLOCK_N=min(block.columns, padded(N)),
        HAS_MASK=mask is not None, HAS_RES=residual, PRECISION=precision(w1.dtype),
        num_warps=block.warps, num_stages=block.stages,
    )  # fmt: skip
    return out, stats

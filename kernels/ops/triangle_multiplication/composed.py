"""Input and output of a triangle multiplication with cuBLAS products and kernels between them.

For 256 channels, where fused kernels spill registers and take minutes to compile in float32.
Everything between two products is one kernel.

Letters: M = B * R * R pairs, C channels of the pair representation, E hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication.composed_triton import (
    gated_columns_grad_kernel,
    gated_columns_kernel,
    norm_columns_grad_kernel,
    norm_columns_kernel,
)
from evofeed.kernels.runtime.backend import triton
from evofeed.kernels.runtime.gates import gated, gated_grads
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import Drop, norm_rows, padded, project
from evofeed.kernels.runtime.tiles import tile

CHUNK = 1 << 18  # pairs whose projections are in memory together in the forward pass


def run_in(
    z: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, ab: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fills a and b `[2, E * B, R, R]`; returns the normalised pairs and their statistics."""
    E, M = bias.numel() // 4, mask.numel()
    normed, stats, _ = norm_rows(z.view(M, -1), gamma, beta, eps, ab.dtype)
    rows, columns, warps = _tile("columns", E, ab.dtype)
    for first in range(0, M, CHUNK):
        chunk = normed[first : first + CHUNK]
        p, count = project(chunk, weight[: 4 * E]), chunk.shape[0]
        launch(
            gated_columns_kernel,
            (triton.cdiv(count, rows) * 2 * triton.cdiv(E, columns),),
            (p, bias, mask, ab, count, first, M, E, p.stride(0)),
            {"BLOCK_M": rows, "BLOCK_E": columns, "num_warps": warps},
        )  # fmt: skip
    return normed, stats


def _tile(name: str, E: int, dtype: torch.dtype) -> tuple[int, int, int]:
    """Rows, channels and warps of a program that transposes a tile."""
    choice = tile(f"triangle_{name}", E, torch.bfloat16)
    return choice.rows, min(choice.columns, padded(E)), choice.warps


def _norm_columns(
    xt: Tensor, gamma: Tensor, beta: Tensor, M: int, eps: float
) -> tuple[Tensor, Tensor]:
    """Normalised rows `[M, E]` of xt, which is channels first, and their statistics."""
    E = gamma.numel()
    normed = torch.empty((M, E), dtype=xt.dtype, device=xt.device)
    stats = torch.empty((2, M), dtype=torch.float32, device=xt.device)
    choice = tile("triangle_norm", E, torch.bfloat16)
    launch(
        norm_columns_kernel, (triton.cdiv(M, choice.rows),),
        (xt, gamma, beta, normed, stats, M, E, eps),
        {"BLOCK_M": choice.rows, "BLOCK_E": padded(E), "num_warps": choice.warps},
    )  # fmt: skip
    return normed, stats


def run_out(
    xt: Tensor, gamma: Tensor, beta: Tensor, wz: Tensor, bz: Tensor, z: Tensor, normed: Tensor,
    wg: Tensor, bg: Tensor, drop: Drop, residual: bool, out: Tensor, eps: float,
) -> Tensor:  # fmt: skip
    """Fills the result; returns the statistics of the product."""
    rows_x, stats = _norm_columns(xt, gamma, beta, normed.shape[0], eps)
    gated(
        project(rows_x, wz), project(normed, wg), out, y_bias=bz, gate_bias=bg,
        drop=drop, residual=z if residual else None,
    )  # fmt: skip
    return stats


def run_out_grad(
    dout: Tensor, xt: Tensor, gamma: Tensor, beta: Tensor, wz: Tensor, bz: Tensor, gate: Tensor,
    bg: Tensor, drop: Drop, dxt: Tensor, eps: float,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """Fills dxt, and replaces the gate before its sigmoid and bias `[M, C]` by its gradient.

    Returns the gradient of wz, and partial sums of the gradients of both norm weights (2E) and of
    both biases (2C).
    """
    M, E = dout.shape[0], gamma.numel()
    normed, stats = _norm_columns(xt, gamma, beta, M, eps)
    y = project(normed, wz)
    of_rows = gated_grads(dout, y, gate, y, y_bias=bz, gate_bias=bg, drop=drop)
    dwz = torch.mm(y.t(), normed)
    torch.mm(wz.t(), y.t(), out=dxt.view(E, M))  # of the norm's result, channels first
    choice = tile("triangle_norm_grad", E, torch.bfloat16)
    programs = triton.cdiv(M, choice.rows)
    of_norm = torch.empty((programs, 2 * E), dtype=torch.float32, device=xt.device)
    launch(
        norm_columns_grad_kernel, (programs,), (dxt, xt, stats, gamma, of_norm, M, E),
        {"BLOCK_M": choice.rows, "BLOCK_E": padded(E), "num_warps": choice.warps},
    )  # fmt: skip
    return dwz, [of_norm, of_rows]


def run_in_grad(projected: Tensor, bias: Tensor, mask: Tensor, dab: Tensor) -> Tensor:
    """Replaces the first 4E columns, before their bias, by their gradient, from dab.

    Returns partial sums of these columns.
    """
    E, M = bias.numel() // 4, mask.numel()
    rows, columns, warps = _tile("columns_grad", E, dab.dtype)
    tiles = triton.cdiv(M, rows)
    partial = torch.empty((tiles, 4 * E), dtype=torch.float32, device=dab.device)
    launch(
        gated_columns_grad_kernel, (tiles * 2 * triton.cdiv(E, columns),),
        (projected, bias, mask, dab, partial, M, E, projected.stride(0)),
        {"BLOCK_M": rows, "BLOCK_E": columns, "num_warps": warps},
    )  # fmt: skip
    return partial

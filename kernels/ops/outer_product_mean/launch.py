"""Launches of the outer product mean's kernels.

Letters as in `op.py`: B batch, S sequences, L residues i here, R residues j, M = B * S * L, E
channels of a projection, N channels of the pairs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.outer_product_mean.triton import (
    masked_halves_kernel,
    outer_dproject_kernel,
    outer_dw_kernel,
    outer_project_kernel,
)
from evofeed.kernels.runtime.backend import sm_count, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded, precision
from evofeed.kernels.runtime.sums import column_sums
from evofeed.kernels.runtime.tiles import tile


def masked(source: Tensor, mask: Tensor, to: Tensor, sums: bool = False) -> Tensor | None:
    """`to` = `source` times the mask `[M]`, both `[2, M, E]` views; with `sums` over m too."""
    _, M, E = source.shape
    programs = triton.cdiv(M, 128)
    partial = None
    if sums:
        partial = torch.empty((programs, 2 * E), dtype=torch.float32, device=to.device)
    launch(
        masked_halves_kernel, (programs, 2),
        (source, mask, to, partial, M, *source.stride()[:2], *to.stride()[:2]),
        {"E": E, "BLOCK_M": 128, "SUMS": sums, "num_warps": 4},
    )  # fmt: skip
    return partial


def _options(op: str, E: int, N: int, dtype: torch.dtype) -> dict[str, Any]:
    block = tile(op, N, dtype)
    return {
        "E": E, "BLOCK_CE": max(E, min(block.columns, E * E)), "BLOCK_J": block.rows,
        "BLOCK_N": padded(N), "PRECISION": precision(dtype), "num_warps": block.warps,
        "num_stages": block.stages,
    }  # fmt: skip


def project(
    outer: Tensor, out_w: Tensor, bias: Tensor, norm: Tensor, z: Tensor | None, out: Tensor, E: int
) -> None:
    """Fills out `[B, L, R, N]` from the outer product `[B, L * E, R * E]`, plus z."""
    B, L, R, N = out.shape
    options = _options("outer_project", E, N, out_w.dtype)
    launch(
        outer_project_kernel, (triton.cdiv(R, options["BLOCK_J"]), L, B),
        (outer, out_w, bias, norm, z, out, R, N), {"HAS_RES": z is not None, **options},
    )  # fmt: skip


def project_grad(
    dout: Tensor, out_w: Tensor, norm: Tensor, scaled: Tensor, douter: Tensor, E: int
) -> Tensor:
    """Fills `scaled` and `douter`; returns partial sums of the gradient of the output's bias."""
    (B, L, R), N = norm.shape, out_w.shape[1]
    options = _options("outer_dproject", E, N, out_w.dtype)
    tiles = triton.cdiv(R, options["BLOCK_J"])
    sums = torch.empty((tiles * L * B, N), dtype=torch.float32, device=dout.device)
    launch(
        outer_dproject_kernel, (tiles, L, B), (dout, out_w, norm, scaled, douter, sums, R, N),
        options,
    )  # fmt: skip
    return sums


def weight_grad_of_output(
    outer: Tensor, scaled: Tensor, sizes: tuple[int, int], E: int, N: int, dtype: torch.dtype
) -> Tensor:
    """Gradient `[E * E, N]` of the output projection; `sizes`: rows (b, i), and residues j."""
    rows, R = sizes
    rows_c = max(1, min(E, (128 if scaled.dtype is not torch.float32 else 32) // E))
    groups = E // rows_c
    splits = max(1, min(rows, (2 * sm_count(scaled)) // groups, 32))
    i_each = triton.cdiv(rows, splits)
    splits = triton.cdiv(rows, i_each)
    partial = torch.empty((splits, E * E * N), dtype=torch.float32, device=scaled.device)
    options = _options("outer_dw", E, N, scaled.dtype)
    del options["BLOCK_CE"]
    launch(
        outer_dw_kernel, (groups, splits), (outer, scaled, partial, rows, R, N, i_each),
        {"ROWS_C": rows_c, **options},
    )  # fmt: skip
    return column_sums([partial], dtype)[0].view(E * E, N)

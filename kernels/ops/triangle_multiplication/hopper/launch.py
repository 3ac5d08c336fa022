"""Launches of the triangle kernels for Hopper cards: their inputs and programs.

Letters as in `op.py`: M pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.triangle_multiplication.hopper.kernels import (
    triangle_in_grad_kernel,
    triangle_out_grad_kernel,
    triangle_out_kernel,
)
from evofeed.kernels.ops.triangle_multiplication.hopper.projections import (
    triangle_projections_kernel,
)
from evofeed.kernels.ops.triangle_multiplication.triton import projection_sums_kernel
from evofeed.kernels.runtime.backend import on_hopper
from evofeed.kernels.runtime.launching import launch, tma_tiles
from evofeed.kernels.runtime.projection import Drop, aligned, resident_programs

ROWS = 64  # pairs of a tile
WARPS = 8
GRAD_PART = 64  # channels of a or b of a program of the projections' gradient
GRAD_WARPS = 4  # of such a program, so that two share a multiprocessor
MANY = 1 << 15  # pairs from which projections by two groups of warps are faster than Triton's


def fits(z: Tensor, E: int, dtype: torch.dtype) -> bool:
    """True if the kernels take these pairs: Hopper, 16 bits, rows aligned to 16 bytes."""
    C = z.shape[-1]
    return (
        on_hopper(z, dtype)
        and z.dtype is dtype
        and C == E
        and C in (64, 128)
        and (z.numel() // C) % 16 == 0
        and z.numel() // C * E < 2**31
    )


def projects(z: Tensor, E: int, dtype: torch.dtype) -> bool:
    """True if a hand-written kernel computes the projections too: 128 channels, many pairs."""
    return fits(z, E, dtype) and E == 128 and z.numel() // E >= MANY


def _sizes(z: Tensor) -> dict[str, int]:
    C = z.shape[-1]
    return {"C": C, "E": C, "BLOCK_M": ROWS, "num_warps": WARPS}


def run_in(
    z: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, ab: Tensor,
    stats: Tensor, eps: float,
) -> None:  # fmt: skip
    """Fills a and b `[2, E * B, R, R]` and the statistics of z."""
    M, C = mask.numel(), z.shape[-1]
    launch(
        triangle_projections_kernel, (resident_programs(z, M, 2 * ROWS),),
        (gamma, beta, bias, mask, stats, tma_tiles(aligned(z).view(M, C), ROWS, C),
         tma_tiles(weight, C, C), tma_tiles(ab.view(2 * C, M), C, ROWS), M, eps),
        {"C": C, "E": C, "BLOCK_M": ROWS, "num_warps": 4},
    )  # fmt: skip


def run_in_grad(
    z: Tensor, stats: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor,
    mask: Tensor, dab: Tensor, dpacked: Tensor,
) -> Tensor:  # fmt: skip
    """Fills the first 4E columns of dpacked; returns partial sums of these columns."""
    parts = 2 * z.shape[-1] // GRAD_PART
    programs = resident_programs(z, mask.numel(), ROWS, parts, 2)
    partial = torch.empty((programs, bias.numel()), dtype=torch.float32, device=z.device)
    launch(
        triangle_in_grad_kernel, (parts * programs,),
        (aligned(z), stats, gamma, beta, weight, bias, mask, dab, dpacked, partial, mask.numel(),
         dpacked.stride(0)),
        {**_sizes(z), "BLOCK_E": GRAD_PART, "num_warps": GRAD_WARPS},
    )  # fmt: skip
    return partial


def run_out(
    xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor, stats: Tensor,
    gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, drop: Drop, residual: bool,
    out: Tensor, eps: float,
) -> None:  # fmt: skip
    """Fills the result and the second statistics, of X; the first are z's."""
    launch(
        triangle_out_kernel, (resident_programs(z, stats.shape[-1], ROWS),),
        (xt, gamma_x, beta_x, wz, bz, aligned(z), stats[0], gamma_z, beta_z, wg, bg,
         drop.of(z.dtype), out, stats[1], stats.shape[-1], eps, *drop.strides()),
        {**_sizes(z), "HAS_DROP": drop.mask is not None, "DROP_STEP": drop.step(ROWS),
         "HAS_RES": residual},
    )  # fmt: skip


def run_out_grad(
    dout: Tensor, xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor,
    stats: Tensor, gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, drop: Drop,
    dxt: Tensor, dgate: Tensor, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fills dxt and dgate `[M, C]`.

    Returns the gradient of wz, and those of gamma_x, beta_x, bz and bg in one tensor.
    """
    programs, (C, E) = resident_programs(z, stats.shape[-1], ROWS), wz.shape
    partial_w = torch.empty((programs, E, C), dtype=torch.float32, device=z.device)
    partial = torch.empty((programs, 2 * C), dtype=torch.float32, device=z.device)
    launch(
        triangle_out_grad_kernel, (programs,),
        (aligned(dout), xt, stats[1], gamma_x, beta_x, wz, bz, aligned(z), stats[0], gamma_z,
         beta_z, wg, bg, drop.of(z.dtype), dxt, dgate, partial_w, partial, stats.shape[-1],
         dgate.stride(0), *drop.strides()),
        {**_sizes(z), "HAS_DROP": drop.mask is not None, "DROP_STEP": drop.step(ROWS)},
    )  # fmt: skip
    dwz = torch.empty_like(wz, dtype=dtype)
    sums = torch.empty(2 * (E + C), dtype=dtype, device=z.device)
    launch(
        projection_sums_kernel, (E,),
        (partial_w, partial, wz, gamma_x, beta_x, dwz, sums, programs),
        {"C": C, "E": E, "GROUP": 64, "num_warps": 8},
    )  # fmt: skip
    return dwz, sums

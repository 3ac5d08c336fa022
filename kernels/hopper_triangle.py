"""Launches of the triangle kernels for Hopper cards: which inputs they take, on how many programs.

Letters as in `triangle.py`: M pairs, C pair channels, E hidden channels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from evofeed.kernels.backend import HAS_GLUON, INTERPRETER, capability, sm_count, triton
from evofeed.kernels.hopper_triangle_kernels import (
    triangle_in_grad_kernel,
    triangle_in_kernel,
    triangle_out_grad_kernel,
    triangle_out_kernel,
)
from evofeed.kernels.launching import launch
from evofeed.kernels.projection import Drop
from evofeed.kernels.triangle_kernels import projection_sums_kernel

__all__ = ["fits", "run_in", "run_in_grad", "run_out", "run_out_grad"]


class Shape(NamedTuple):
    """How a kernel is launched.

    Attributes:
        rows: pairs a program takes at a time.
        warps: of a program.
        programs: per multiprocessor.
        registers: of a thread at most, or None.
    """

    rows: int
    warps: int
    programs: int = 1
    registers: int | None = None


SHAPES = {
    "in": Shape(64, 8, 2, 128),  # half a multiprocessor's registers
    "in_grad": Shape(64, 8),
    "out": Shape(64, 8),
    "out_grad": Shape(64, 8),
}


def fits(z: Tensor, E: int, dtype: torch.dtype) -> bool:
    """Whether the kernels take these pairs: Hopper, 16 bits, lines that start at 16 bytes."""
    C = z.shape[-1]
    return (
        HAS_GLUON
        and not INTERPRETER
        and z.device.type == "cuda"
        and capability(z) == (9, 0)
        and z.dtype is dtype
        and dtype in (torch.bfloat16, torch.float16)
        and C == E
        and C in (64, 128)
        and (z.numel() // C) % 16 == 0
        and z.numel() // C * E < 2**31
    )


def _programs(z: Tensor, op: str) -> int:
    """Programs that share all pairs, an even number."""
    shape = SHAPES[op]
    tiles = triton.cdiv(z.numel() // z.shape[-1], shape.rows)
    return 2 * max(1, int(min(tiles, shape.programs * sm_count(z))) // 2)


def _sizes(z: Tensor, op: str) -> dict[str, Any]:
    C, shape = z.shape[-1], SHAPES[op]
    return {
        "C": C, "E": C, "BLOCK_M": shape.rows, "num_warps": shape.warps,
        "maxnreg": shape.registers,
    }  # fmt: skip


def run_in(
    z: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor, mask: Tensor, ab: Tensor,
    stats: Tensor, eps: float,
) -> None:  # fmt: skip
    """Fills a and b `[2, E * B, R, R]` and the statistics of z."""
    M = mask.numel()
    launch(
        triangle_in_kernel, (_programs(z, "in"),),
        (z, gamma, beta, weight, bias, mask, ab, stats, M, eps),
        _sizes(z, "in"),
    )  # fmt: skip


def run_in_grad(
    z: Tensor, stats: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, bias: Tensor,
    mask: Tensor, dab: Tensor, dpacked: Tensor,
) -> Tensor:  # fmt: skip
    """Fills the first 4E columns of dpacked; returns parts of the sums of these columns."""
    programs = _programs(z, "in_grad")
    partial = torch.empty((programs // 2, bias.numel()), dtype=torch.float32, device=z.device)
    launch(
        triangle_in_grad_kernel, (programs,),
        (z, stats, gamma, beta, weight, bias, mask, dab, dpacked, partial, mask.numel(),
         dpacked.stride(0)),
        _sizes(z, "in_grad"),
    )  # fmt: skip
    return partial


def _drop(drop: Drop, z: Tensor) -> Tensor | None:
    return None if drop.mask is None else drop.mask.to(z.dtype)


def run_out(
    xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor, stats: Tensor,
    gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, drop: Drop, residual: bool,
    out: Tensor, eps: float,
) -> None:  # fmt: skip
    """Fills the result and the second statistics, those of X; the first are z's."""
    launch(
        triangle_out_kernel, (_programs(z, "out"),),
        (xt, gamma_x, beta_x, wz, bz, z, stats[0], gamma_z, beta_z, wg, bg, _drop(drop, z), out,
         stats[1], stats.shape[-1], eps, *drop.strides()),
        {**_sizes(z, "out"), "HAS_DROP": drop.mask is not None, "HAS_RES": residual},
    )  # fmt: skip


def run_out_grad(
    dout: Tensor, xt: Tensor, gamma_x: Tensor, beta_x: Tensor, wz: Tensor, bz: Tensor, z: Tensor,
    stats: Tensor, gamma_z: Tensor, beta_z: Tensor, wg: Tensor, bg: Tensor, drop: Drop,
    dxt: Tensor, dgate: Tensor, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fills dxt and dgate `[M, C]`.

    Returns the gradient of wz, and one after the other those of gamma_x, beta_x, bz and bg.
    """
    programs, (C, E) = _programs(z, "out_grad"), wz.shape
    partial_w = torch.empty((programs, E, C), dtype=torch.float32, device=z.device)
    partial = torch.empty((programs, 2 * C), dtype=torch.float32, device=z.device)
    launch(
        triangle_out_grad_kernel, (programs,),
        (dout, xt, stats[1], gamma_x, beta_x, wz, bz, z, stats[0], gamma_z, beta_z, wg, bg,
         _drop(drop, z), dxt, dgate, partial_w, partial, stats.shape[-1], dgate.stride(0),
         *drop.strides()),
        {**_sizes(z, "out_grad"), "HAS_DROP": drop.mask is not None},
    )  # fmt: skip
    dwz = torch.empty_like(wz)
    sums = torch.empty(2 * (E + C), dtype=dtype, device=z.device)
    launch(
        projection_sums_kernel, (E,),
        (partial_w, partial, wz, gamma_x, beta_x, dwz, sums, programs),
        {"C": C, "E": E, "GROUP": 64, "num_warps": 8},
    )  # fmt: skip
    return dwz, sums

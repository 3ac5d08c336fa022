"""Launches of the gated output's kernels for Hopper cards: their inputs and programs.

Letters as in `kernels.py`: M rows, K = H * D channels of the attention, C channels of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.gated_attention.hopper.kernels import (
    gated_output_grad_kernel,
    gated_output_kernel,
)
from evofeed.kernels.runtime.backend import on_hopper
from evofeed.kernels.runtime.launching import launch, tma_tiles
from evofeed.kernels.runtime.projection import Drop, aligned, resident_programs

ROWS = 64  # of a tile
WARPS = 8
PART = 128  # channels of a program's share of the weight
HALF = 128  # registers of a thread that leave room for a second program on a multiprocessor


def fits(x: Tensor, width: int, dtype: torch.dtype) -> bool:
    """True if the kernels take this op: Hopper, 16 bits, 64 to 256 channels."""
    return (
        on_hopper(x, dtype)
        and x.dtype is dtype
        and x.shape[-1] in (64, 128, 256)
        and width in (64, 128, 256)
    )


def run_output(
    attended: Tensor, gate: Tensor, gate_bias: Tensor, weight: Tensor, bias: Tensor, x: Tensor,
    drop: Drop, residual: bool,
) -> Tensor:  # fmt: skip
    """drop * ((sigmoid(gate + gate_bias) * attended) weight^T + bias), plus x if `residual`."""
    C, K = weight.shape
    M, block = attended.numel() // K, min(C, PART)
    out = torch.empty_like(x)
    per_sm = 2 if max(C, K) <= 128 else 1  # programs that fit a multiprocessor
    rows = (
        tma_tiles(attended.view(M, K), ROWS, K), tma_tiles(gate, ROWS, K),
        tma_tiles(aligned(weight), block, K), tma_tiles(aligned(x).view(M, C), ROWS, block),
        tma_tiles(out.view(M, C), ROWS, block),
    )  # fmt: skip
    launch(
        gated_output_kernel, (C // block * resident_programs(x, M, ROWS, C // block, per_sm),),
        (gate_bias, bias, drop.of(x.dtype), *rows, M, *drop.strides()),
        {"K": K, "C": C, "BLOCK_C": block, "BLOCK_M": ROWS, "HAS_DROP": drop.mask is not None,
         "DROP_STEP": drop.step(ROWS), "HAS_RES": residual, "num_warps": WARPS,
         "maxnreg": HALF if per_sm == 2 else None},
    )  # fmt: skip
    return out


def run_output_grad(
    dout: Tensor, drop: Drop, weight: Tensor, attended: Tensor, gate: Tensor, gate_bias: Tensor,
    do: Tensor, dgate: Tensor, columns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Fills `do` `[B, R, N, H, D]` and `dgate` `[M, K]`, a view, from dout `[M, C]`.

    Returns delta `[B * rows, H, N]`, sums over heads of dO * O, and parts of the gradients of the
    gate's bias `[programs, K]`, the output's `[programs, C]` and its weight `[programs, C * K]`.
    """
    B, R, N, H, D = attended.shape
    (C, K), M, device = weight.shape, B * R * N, dout.device
    rows, length = (N, R) if columns else (R, N)
    delta = torch.empty((B * rows, H, length), dtype=torch.float32, device=device)
    to_i, to_j = (1, H * length) if columns else (H * length, 1)
    # a narrower share does not spill: without dropout 58 -> 48 us at 256 channels
    block = K if K <= PART else PART // 2
    programs = resident_programs(dout, M, ROWS, K // block, 2 if max(C, K) <= 64 else 1)
    of_gate, of_bias, of_weight = (
        torch.empty((programs, n), dtype=torch.float32, device=device) for n in (K, C, C * K)
    )
    tiles = (
        tma_tiles(aligned(dout), ROWS, C), tma_tiles(aligned(weight), C, block),
        *(tma_tiles(x, ROWS, block) for x in (attended.view(M, K), gate, do.view(M, K), dgate)),
    )  # fmt: skip
    launch(
        gated_output_grad_kernel, (K // block * programs,),
        (delta, drop.of(dout.dtype), gate_bias, of_weight, of_gate, of_bias, *tiles, M,
         rows * H * length, to_i, to_j, length, R, N, *drop.strides()),
        {"K": K, "C": C, "D": D, "BLOCK_K": block, "BLOCK_M": ROWS,
         "HAS_DROP": drop.mask is not None, "DROP_STEP": drop.step(ROWS), "num_warps": WARPS,
         "maxnreg": HALF if max(C, K) <= 64 else None},
    )  # fmt: skip
    return delta, of_gate, of_bias, of_weight

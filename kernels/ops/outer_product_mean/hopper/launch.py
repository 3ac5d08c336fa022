"""Launches of the outer product mean's kernels for Hopper cards: which inputs, how many programs.

Letters as in `op.py`: S sequences, L residues i here, R residues j, E channels of a projection, N
channels of the pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.outer_product_mean.hopper.kernels import (
    outer_dproject_kernel,
    outer_forward_kernel,
)
from evofeed.kernels.runtime.backend import on_hopper, sm_count, triton
from evofeed.kernels.runtime.launching import launch, tiles_in
from evofeed.kernels.runtime.projection import even

SEQUENCES, TAIL = 128, 16  # of a product, and behind it
ROWS, COLUMNS, LINE = 64, 4, 8  # residues i and j of a tile; i's that 16 bytes hold
STAGES, TOGETHER = 4, 4  # channels c on their way, and in one turn of a loop
PARTS, LONG_ROWS = 4, 128  # of the gradient: shares of the weight, pairs of a tile


def fits(z: Tensor | None, E: int, N: int, dtype: torch.dtype) -> bool:
    """Whether the gradient's kernel takes pairs z: Hopper, 16 bits, 32 and 128 channels."""
    return (
        z is not None
        and on_hopper(z, dtype)
        and z.dtype is dtype
        and (E, N) == (32, 128)
        and z.numel() >= LONG_ROWS * N
    )


def forward_fits(z: Tensor | None, S: int, batch: int, E: int, N: int, dtype: torch.dtype) -> bool:
    """Whether the forward kernel takes pairs z to add to, of S sequences."""
    if z is None or not fits(z, E, N, dtype):
        return False
    L, R = z.shape[1:3]
    # Of 36 by 36 residues it met an illegal instruction: fewer than a tile has, or an odd line.
    whole = min(L, R) >= ROWS and L % LINE == 0 and R % COLUMNS == 0
    return batch == 1 and 0 <= S - SEQUENCES <= TAIL and whole


def run_forward(
    a: Tensor, b: Tensor, weight: Tensor, bias: Tensor, norm: Tensor, z: Tensor, out: Tensor,
    outer: Tensor | None,
) -> None:  # fmt: skip
    """Fills out `[L, R, N]`, and outer `[L, E, R, E]` if it is to be kept.

    Args:
        a: `[S, E, L]`.
        b: `[1, S, R * E]`.
        weight: `[E * E, N]`.
        bias: `[N]`.
        norm: `[1, L, R]`.
        z: added, like out.
        out, outer: see above, after an axis of 1.
    """
    (S, E, L), R, (E2, N) = a.shape, norm.shape[-1], weight.shape
    a, b, pairs = a.view(S, E * L), b.view(S, R * E), out.view(L, R * N)
    kept = pairs if outer is None else outer.view(L, E2 * R)
    tiles = (
        tiles_in(a, SEQUENCES, ROWS), tiles_in(a, TAIL, ROWS), tiles_in(b, SEQUENCES, 2 * E),
        tiles_in(b, TAIL, 2 * E), tiles_in(weight, E, N), tiles_in(even(z).view(L, R * N), ROWS, N),
        tiles_in(pairs, ROWS, N), tiles_in(kept, ROWS, 2 * E),
    )  # fmt: skip
    programs = min(triton.cdiv(L, ROWS) * (R // COLUMNS), sm_count(out))
    launch(
        outer_forward_kernel, (programs,), (bias, norm, *tiles, L, R),
        {"E": E, "N": N, "HAS_TAIL": S > SEQUENCES, "KEEP": outer is not None, "STAGES": STAGES,
         "TOGETHER": TOGETHER, "num_warps": 4},
    )  # fmt: skip


def run_dproject(
    dout: Tensor, weight: Tensor, norm: Tensor, scaled: Tensor, douter: Tensor, E: int
) -> Tensor:
    """Fills scaled `[M, N]` and douter `[M / R, E, R, E]`; returns parts of the bias's gradient."""
    M, N = scaled.shape
    programs = min(triton.cdiv(M, LONG_ROWS), sm_count(dout) // PARTS)
    sums = torch.empty((programs, N), dtype=torch.float32, device=dout.device)
    launch(
        outer_dproject_kernel, (programs * PARTS,),
        (norm, weight, scaled, douter, sums, tiles_in(even(dout).view(M, N), LONG_ROWS, N), M,
         norm.shape[-1]),
        {"E": E, "N": N, "PARTS": PARTS, "BLOCK_M": LONG_ROWS, "num_warps": 8},
    )  # fmt: skip
    return sums

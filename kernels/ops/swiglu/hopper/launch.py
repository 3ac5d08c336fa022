"""Launches of the SwiGLU transition's kernels for Hopper cards: their inputs and programs.

Letters: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.swiglu.hopper.kernels import swiglu_rows_kernel, swiglu_weights_kernel
from evofeed.kernels.runtime.backend import on_hopper
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import aligned, resident_programs
from evofeed.kernels.runtime.sums import column_sums

ROWS = 128  # of a tile in the forward pass
GRAD_ROWS = 64  # of a tile in the backward pass: 128 spill registers
HIDDEN = 64  # hidden channels of a part, or of a program: as many as registers hold
WARPS = 8


def fits(x: Tensor, wo: Tensor) -> bool:
    """True if the backward kernel takes these rows: Hopper, 16 bits, 64 or 128 channels."""
    C, N = wo.shape
    return on_hopper(x, wo.dtype) and C in (64, 128) and N % HIDDEN == 0


def forward_fits(x: Tensor, wo: Tensor) -> bool:
    """True if the forward kernel does: also rows of the weights' type, an even number of parts."""
    return fits(x, wo) and x.dtype is wo.dtype and wo.shape[1] % (2 * HIDDEN) == 0


def in_eights(packed: Tensor) -> Tensor:
    """`[2N, C]` with eight rows of the first half, eight of the second, and so on."""
    return packed.view(2, -1, 8, packed.shape[1]).transpose(0, 1).reshape(packed.shape)


def run(
    x: Tensor, gamma: Tensor, beta: Tensor, packed: Tensor, wo: Tensor, eps: float,
    mask: Tensor | None, residual: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The whole forward pass; also the norm's statistics `[2, M]`. `packed` is `in_eights`."""
    M, (C, N) = x.shape[0], wo.shape
    out = torch.empty_like(x)
    stats = torch.empty((2, M), dtype=torch.float32, device=x.device)
    launch(
        swiglu_rows_kernel, (resident_programs(x, M, ROWS),),
        (aligned(x), gamma, beta, packed, aligned(wo), mask, out, stats, M, eps),
        {"C": C, "N": N, "BLOCK_N": HIDDEN, "BLOCK_M": ROWS, "HAS_MASK": mask is not None,
         "HAS_RES": residual, "num_warps": WARPS},
    )  # fmt: skip
    return out, stats


def run_hidden_grad(
    x: Tensor, dy: Tensor, mask: Tensor | None, packed: Tensor, wo: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of both hidden layers `[M, 2N]`, of their weights `[2N, C]` and of the third.

    From normalised rows x and the gradient dy of the result, both `[M, C]`; `mask` is a factor
    of each row of dy. `packed` is `in_eights`, and so are the columns of the first gradient.
    """
    M, (C, N) = x.shape[0], wo.shape
    splits = resident_programs(x, M, GRAD_ROWS, N // HIDDEN)
    dab = torch.empty((M, 2 * N), dtype=x.dtype, device=x.device)
    ab, o = (torch.empty((splits, n * C), dtype=torch.float32, device=x.device) for n in (2 * N, N))
    launch(
        swiglu_weights_kernel, (N // HIDDEN * splits,),
        (x, aligned(dy), mask, packed, aligned(wo), dab, ab, o, M),
        {"C": C, "N": N, "BLOCK_N": HIDDEN, "BLOCK_M": GRAD_ROWS, "HAS_MASK": mask is not None,
         "num_warps": WARPS},
    )  # fmt: skip
    of_ab, of_o = column_sums([ab, o], wo.dtype)
    of_ab = of_ab.view(-1, 2, 8, C).transpose(0, 1).reshape(2 * N, C)
    return dab, of_ab, of_o.view(C, N)

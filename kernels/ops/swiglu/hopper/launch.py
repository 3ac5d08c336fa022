"""Launches of the SwiGLU transition's kernel for Hopper cards: which inputs, how many programs.

Letters: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.swiglu.hopper.kernels import swiglu_weights_kernel
from evofeed.kernels.runtime.backend import on_hopper, sm_count, triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import even
from evofeed.kernels.runtime.sums import column_sums

ROWS = 64  # rows a program takes at a time: 128 spill registers
HIDDEN = 64  # hidden channels of a program: what registers hold of three weights' gradients
WARPS = 8


def fits(x: Tensor, wo: Tensor) -> bool:
    """Whether the kernel takes these rows: Hopper, 16 bits, 64 or 128 channels."""
    C, N = wo.shape
    return on_hopper(x, wo.dtype) and C in (64, 128) and N % HIDDEN == 0


def run_hidden_grad(
    x: Tensor, dy: Tensor, mask: Tensor | None, packed: Tensor, wo: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of both hidden layers `[M, 2N]`, of their weights `[2N, C]` and of the third.

    From normalised rows x and the gradient dy of the result, both `[M, C]`; `mask` is a factor
    of each row of dy.
    """
    M, (C, N) = x.shape[0], wo.shape
    splits = int(max(1, min(triton.cdiv(M, ROWS), sm_count(x) // (N // HIDDEN))))
    dab = torch.empty((M, 2 * N), dtype=x.dtype, device=x.device)
    a, b, o = (torch.empty((splits, N * C), dtype=torch.float32, device=x.device) for _ in range(3))
    launch(
        swiglu_weights_kernel, (N // HIDDEN * splits,),
        (x, even(dy), mask, even(packed), even(wo), dab, a, b, o, M),
        {"C": C, "N": N, "BLOCK_N": HIDDEN, "BLOCK_M": ROWS, "HAS_MASK": mask is not None,
         "num_warps": WARPS},
    )  # fmt: skip
    da, db, do = column_sums([a, b, o], wo.dtype)
    return dab, torch.cat([da, db]).view(2 * N, C), do.view(C, N)

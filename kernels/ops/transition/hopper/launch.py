"""Launches of the transition's kernel for Hopper cards: its inputs and programs.

Letters as in `triton.py`: M rows, C channels, N hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.transition.hopper.kernels import transition_grad_kernel
from evofeed.kernels.runtime.backend import on_hopper
from evofeed.kernels.runtime.launching import launch, tma_tiles
from evofeed.kernels.runtime.projection import aligned, resident_programs

ROWS = 64  # of a tile
WARPS = 8


def fits(x: Tensor, w1: Tensor) -> bool:
    """True if the kernel takes these rows `[M, C]`: Hopper, 16 bits, 64 to 256 channels."""
    N, C = w1.shape
    return on_hopper(x, w1.dtype) and C in (64, 128, 256) and N % _hidden_each(C) == 0


def _hidden_each(C: int) -> int:
    """Hidden channels of a program, limited by registers for both weights' gradients."""
    return 64 if C == 256 else 128


def run_hidden_grad(
    x: Tensor, dy: Tensor, w1: Tensor, b1: Tensor, w2: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the hidden layer before its relu `[M, N]`, and partial sums of others.

    Of the first weight `[programs, N * C]`, the second `[programs, C * N]` and the first bias
    `[programs, N]`, from normalised rows x and the gradient dy of the result, both `[M, C]`.
    """
    M, (N, C) = x.shape[0], w1.shape
    block = _hidden_each(C)
    splits = resident_programs(x, M, ROWS, N // block)
    hidden = torch.empty((M, N), dtype=x.dtype, device=x.device)
    partials = [
        torch.empty((splits, n), dtype=torch.float32, device=x.device) for n in (N * C, N * C, N)
    ]
    x, dy = aligned(x), aligned(dy)
    launch(
        transition_grad_kernel, (N // block * splits,),
        (x, dy, tma_tiles(x, ROWS, C), tma_tiles(dy, ROWS, C), aligned(w1), b1, aligned(w2), hidden,
         *partials, M),
        {"C": C, "N": N, "BLOCK_N": block, "BLOCK_M": ROWS, "BY_ENGINE": C == 256,
         "num_warps": WARPS},
    )  # fmt: skip
    return hidden, partials

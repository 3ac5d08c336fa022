"""The end of what s conditions: a gate that s gives, mask and residual, and their gradients.

Letters: M rows, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from evofeed.kernels.ops.conditioned_transition.triton import (
    gated_sum_grad_kernel,
    gated_sum_kernel,
)
from evofeed.kernels.runtime.backend import triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded

AT_ONCE = 4096  # numbers of a tile
WALK = 4  # tiles of a program of the backward pass


def gated_sum(
    y: Tensor, gate: Tensor, bias: Tensor, mask: Tensor | None, a: Tensor, residual: bool
) -> Tensor:
    """mask * sigmoid(gate + bias) * y, plus a if `residual`, in a's type; rows `[M, C]`."""
    M, C = a.shape
    out, rows = torch.empty_like(a), max(1, AT_ONCE // padded(C))
    launch(
        gated_sum_kernel, (triton.cdiv(M, rows),), (y, gate, bias, mask, a, out, M, C),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "HAS_MASK": mask is not None,
         "HAS_RES": residual, "num_warps": 4},
    )  # fmt: skip
    return out


def gated_sum_grads(
    dout: Tensor, y: Tensor, gate: Tensor, bias: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradient of y, while that of the gate replaces it.

    Also `[programs, C]` whose column sums are the gradient of the bias.
    """
    M, C = y.shape
    dy, rows = torch.empty_like(y), max(1, AT_ONCE // padded(C))
    programs = triton.cdiv(M, rows * WALK)
    partial = torch.empty((programs, C), dtype=torch.float32, device=y.device)
    launch(
        gated_sum_grad_kernel, (programs,), (dout, y, gate, bias, mask, dy, partial, M, C, WALK),
        {"BLOCK_M": rows, "BLOCK_C": padded(C), "HAS_MASK": mask is not None, "num_warps": 4},
    )  # fmt: skip
    return dy, partial

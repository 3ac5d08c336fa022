"""The hidden layer of a transition whose products are cuBLAS's, and its gradients.

Letters: M rows, N hidden channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from evofeed.kernels.ops.swiglu.triton import swiglu_grad_kernel, swiglu_kernel
from evofeed.kernels.runtime.backend import triton
from evofeed.kernels.runtime.launching import launch
from evofeed.kernels.runtime.projection import padded

ROWS, COLUMNS = 16, 256  # of a tile


def _launch(kernel: Any, layers: Tensor, hidden: Tensor, *more: Tensor) -> None:
    M, N = hidden.shape
    columns = min(COLUMNS, padded(N))
    launch(
        kernel, (triton.cdiv(M, ROWS), triton.cdiv(N, columns)), (layers, hidden, *more, M, N),
        {"BLOCK_M": ROWS, "BLOCK_N": columns, "THIRD": layers.shape[1] == 3 * N, "num_warps": 4},
    )  # fmt: skip


def hidden_of(layers: Tensor, N: int) -> Tensor:
    """`[M, N]`, the product of `[M, 2N or 3N]` layers, the first one's silu taken."""
    hidden = torch.empty((layers.shape[0], N), dtype=layers.dtype, device=layers.device)
    _launch(swiglu_kernel, layers, hidden)
    return hidden


def layers_grad(layers: Tensor, dhidden: Tensor) -> Tensor:
    """The gradient of the layers, while that of the hidden one becomes the hidden layer again."""
    dlayers = torch.empty_like(layers)
    _launch(swiglu_grad_kernel, layers, dhidden, dlayers)
    return dlayers

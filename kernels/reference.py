"""The fused ops in plain PyTorch, slow and obvious: what the kernels are checked against.

Each function takes the arguments of the fused op of the same name. They run in
the dtype they are given, float64 included.

Letters: S sequences, R residues, I rows that attend, N positions of a row,
H heads, D head width, C channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

__all__ = ["layer_norm"]


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """`x` normalised over its last axis, affine."""
    return F.layer_norm(x, x.shape[-1:], weight.to(x.dtype), bias.to(x.dtype), eps)

"""`triangle_multiplication` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["TriangleWeights", "triangle_multiplication"]


@dataclass(frozen=True, slots=True)
class TriangleWeights(Parameters):
    """Parameters of one triangle multiplication, as OpenFold names them; biases may be None."""

    biases: ClassVar[dict[str, str]] = {
        f"{layer}_bias": layer for layer in ("a_p", "a_g", "b_p", "b_g", "z", "g")
    }
    norm_in_weight: Tensor
    norm_in_bias: Tensor
    a_p: Tensor
    a_p_bias: Tensor | None
    a_g: Tensor
    a_g_bias: Tensor | None
    b_p: Tensor
    b_p_bias: Tensor | None
    b_g: Tensor
    b_g_bias: Tensor | None
    norm_out_weight: Tensor
    norm_out_bias: Tensor
    z: Tensor
    z_bias: Tensor | None
    g: Tensor
    g_bias: Tensor | None


def triangle_multiplication(
    z: Tensor,
    weights: TriangleWeights,
    *,
    outgoing: bool,
    mask: Tensor | None = None,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    drop_columnwise: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Gated projections, product over the third residue, norm, gated output."""
    w = weights
    zn = layer_norm(z, w.norm_in_weight, w.norm_in_bias, eps)
    a = torch.sigmoid(F.linear(zn, w.a_g, w.a_g_bias)) * F.linear(zn, w.a_p, w.a_p_bias)
    b = torch.sigmoid(F.linear(zn, w.b_g, w.b_g_bias)) * F.linear(zn, w.b_p, w.b_p_bias)
    if mask is not None:
        a, b = a * mask[..., None].to(a.dtype), b * mask[..., None].to(b.dtype)
    x = torch.einsum("bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc", a, b)
    xn = layer_norm(x, w.norm_out_weight, w.norm_out_bias, eps)
    update = F.linear(xn, w.z, w.z_bias) * torch.sigmoid(F.linear(zn, w.g, w.g_bias))
    return added(z, update, residual, drop_mask, drop_columnwise)


def added(
    z: Tensor, update: Tensor, residual: bool, drop_mask: Tensor | None, drop_columnwise: bool
) -> Tensor:
    """The update dropped out, plus z if `residual`."""
    if drop_mask is not None:
        drop = drop_mask[:, :, None] if drop_columnwise else drop_mask[:, None]
        update = update * drop.to(update.dtype)
    return z + update if residual else update

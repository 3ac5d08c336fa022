"""`outer_product_mean` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["OuterWeights", "outer_product_mean"]


@dataclass(frozen=True, slots=True)
class OuterWeights(Parameters):
    """Parameters of one outer product mean, as OpenFold names them; biases may be None."""

    biases: ClassVar[dict[str, str]] = {"b1": "w1", "b2": "w2", "out_bias": "out"}
    norm_weight: Tensor
    norm_bias: Tensor
    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None
    out: Tensor
    out_bias: Tensor | None


def outer_product_mean(
    m: Tensor,
    weights: OuterWeights,
    mask: Tensor,
    *,
    z: Tensor | None = None,
    eps: float = 1e-3,
    least: float = 0.0,
    norm_eps: float = 1e-5,
) -> Tensor:
    """Projected sum of outer products over the number of shared sequences, plus z."""
    w = weights
    mn = layer_norm(m, w.norm_weight, w.norm_bias, norm_eps)
    a = F.linear(mn, w.w1, w.b1) * mask[..., None].to(m.dtype)
    b = F.linear(mn, w.w2, w.b2) * mask[..., None].to(m.dtype)
    outer = torch.einsum("bsic,bsje->bijce", a, b).flatten(-2)
    counts = mask.to(torch.promote_types(m.dtype, torch.float32))
    shared = torch.einsum("bsi,bsj->bij", counts, counts)[..., None] + eps
    shared = shared.clamp(min=least)
    update = (F.linear(outer, w.out, w.out_bias) / shared).to(m.dtype)
    return update if z is None else z + update

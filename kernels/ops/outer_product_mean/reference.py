"""`outer_product_mean` in plain PyTorch: what the kernels are checked against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.projection import zeros_for_none

__all__ = ["OuterWeights", "outer_product_mean"]


@dataclass(frozen=True, slots=True)
class OuterWeights:
    """Parameters of one outer product mean, as OpenFold names them; biases may be None."""

    norm_weight: Tensor
    norm_bias: Tensor
    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None
    out: Tensor
    out_bias: Tensor | None

    def tensors(self) -> tuple[Tensor, ...]:
        """In the order the autograd function takes them."""
        b1, b2, out_bias = zeros_for_none(
            [(self.w1, self.b1), (self.w2, self.b2), (self.out, self.out_bias)]
        )
        return (
            self.norm_weight, self.norm_bias, self.w1, b1, self.w2, b2, self.out, out_bias,
        )  # fmt: skip


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

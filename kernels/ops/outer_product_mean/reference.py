"""`outer_product_mean` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw, Op
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
    """The pair update from m, plus z if given.

    (linear_out(outer) + bias) / (number of shared sequences + eps): the bias is
    divided too, as in AF2.

    Args:
        m: MSA `[B, S, R, C]`.
        weights: the parameters.
        mask: `[B, S, R]`.
        z: pairs `[B, R, R, N]` to add to, or None.
        eps: added to the count of shared sequences.
        least: minimum of the divisor.
        norm_eps: of the norm.
    """
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


def _case(draw: Draw, C: int, E: int, Z: int, residual: bool) -> Case:
    S, R = draw.sequences, draw.residues
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), w1=(E, C), b1=(E,), w2=(E, C), b2=(E,),
        out=(Z, E * E), out_bias=(Z,),
    )  # fmt: skip
    mask = draw.mask(1, S, R)
    tensors = {"m": draw(1, S, R, C)} | ({"z": draw(1, R, R, Z)} if residual else {})

    def run(op: Op, m: Tensor, z: Tensor | None = None, **w: Tensor) -> Tensor:
        return op(m, OuterWeights(**w), mask, z=z)

    return Case(tensors | weights, run)


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 32, 16, 16, False),
        "residual": lambda draw: _case(draw, 32, 16, 32, True),
    },
    timed={
        f"{S}x{R}x{C}": (S, R, partial(_case, C=C, E=32, Z=128, residual=False))
        for S, R, C in ((128, 256, 256), (512, 384, 256), (1024, 256, 64))
    },
)  # fmt: skip

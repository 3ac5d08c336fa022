"""`triangle_multiplication` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw, Op
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
    """The triangle multiplicative update of z, dropped out, plus z if `residual`.

    Args:
        z: pairs `[B, R, R, C]`.
        weights: the parameters.
        outgoing: edges i->k, j->k (True) or k->i, k->j (False).
        mask: `[B, R, R]`, or None.
        residual: True to add z.
        drop_mask: `[B, R, C]` shared along the first residue axis, scaled by 1/(1-p), or None.
        drop_columnwise: the dropout mask is shared along the second residue axis instead.
        eps: of both norms.
    """
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


def _case(
    draw: Draw, C: int, E: int, *, outgoing: bool = True, masked: bool = False, batch: int = 1
) -> Case:
    R = draw.residues
    pairs = {f"{side}_{kind}": (E, C) for side in "ab" for kind in "pg"}
    weights = draw.weights(
        norm_in_weight=(C,), norm_in_bias=(C,), **pairs,
        **{f"{name}_bias": (E,) for name in pairs}, norm_out_weight=(E,), norm_out_bias=(E,),
        z=(C, E), z_bias=(C,), g=(C, C), g_bias=(C,),
    )  # fmt: skip
    mask = draw.mask(batch, R, R) if masked else None
    drop = 2 * draw.mask(batch, R, C) if masked else None

    def run(op: Op, pairs: Tensor, **w: Tensor) -> Tensor:
        masks = [None if t is None else t.to(pairs.dtype) for t in (mask, drop)]
        return op(
            pairs, TriangleWeights(**w), outgoing=outgoing, mask=masks[0], residual=masked,
            drop_mask=masks[1],
        )  # fmt: skip

    return Case({"pairs": draw(batch, R, R, C), **weights}, run)


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 32, 32, batch=2),
        "outgoing": lambda draw: _case(draw, 32, 16, masked=True),
        "incoming": lambda draw: _case(draw, 32, 16, masked=True, outgoing=False),
    },
    {
        "64 channels": lambda draw: _case(draw, 64, 64, masked=True, outgoing=False, batch=2),
        # with output channels in parts
        "256 channels": lambda draw: _case(
            replace(draw, residues=5), 256, 256, masked=True, outgoing=False
        ),
    },
    timed={
        f"{name} {R}": (R, R, partial(_case, C=128, E=128, outgoing=outgoing, masked=True))
        for R in (256, 384) for name, outgoing in (("outgoing", True), ("incoming", False))
    },
)  # fmt: skip

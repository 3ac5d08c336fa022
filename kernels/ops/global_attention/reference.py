"""`global_column_attention` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.gated_attention.reference import AttentionWeights, split_heads
from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw

__all__ = ["global_column_attention"]


def global_column_attention(
    x: Tensor,
    weights: AttentionWeights,
    heads: int,
    mask: Tensor,
    *,
    residual: bool = False,
    norm_eps: float = 1e-5,
    eps: float = 1e-8,
) -> Tensor:
    """linear_o(sigmoid(gate) * attention of each column), plus x if `residual`.

    Args:
        x: `[B, S, R, C]`.
        weights: the parameters; k and v are `[D, C]`, shared by all heads.
        heads: H.
        mask: `[B, S, R]`, 1 for valid sequences, else 0. A column without any
            averages the values of all its sequences, as in AF2.
        residual: True to add x.
        norm_eps: of the layer norm.
        eps: added to the number of sequences in the query's mean.
    """
    w = weights
    xn = layer_norm(x, w.norm_weight, w.norm_bias, norm_eps).transpose(1, 2)  # residues first
    valid = mask.transpose(1, 2)[..., None].to(x.dtype)
    mean = (xn * valid).sum(2) / (valid.sum(2) + eps)
    q = split_heads(F.linear(mean, w.q), heads)
    k, v = F.linear(xn, w.k), F.linear(xn, w.v)
    s = (
        torch.einsum("brhd,brsd->brhs", q, k).to(torch.promote_types(x.dtype, torch.float32))
        * q.shape[-1] ** -0.5
    )
    s = torch.where(valid[..., 0][:, :, None] > 0.5, s, -1e9)
    o = torch.einsum("brhs,brsd->brhd", torch.softmax(s, -1).to(x.dtype), v).flatten(-2)
    gate = torch.sigmoid(F.linear(xn, w.g, w.g_bias))
    update = F.linear(gate * o[:, :, None], w.o, w.o_bias).transpose(1, 2)
    return x + update if residual else update


def _case(
    draw: Draw, C: int, H: int, width: int, residual: bool, sequences: int | None = None
) -> Case:
    S, R, N = sequences or draw.sequences, draw.residues, H * width
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), q=(N, C), k=(width, C), v=(width, C), g=(N, C),
        g_bias=(N,), o=(C, N), o_bias=(C,),
    )  # fmt: skip
    for name, factor in (("q", 3), ("k", 3), ("g", 2)):
        weights[name] = factor * weights[name]
    mask = draw.mask(1, S, R)
    mask[:, :, -1] = 0.0  # a column without a sequence averages all values
    return Case(
        {"x": draw(1, S, R, C), **weights},
        lambda op, x, **w: op(x, AttentionWeights(**w), H, mask, residual=residual),
    )


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 32, 8, 8, False),
        "residual": lambda draw: _case(draw, 32, 2, 32, True),
    },
    {
        "three heads": lambda draw: _case(draw, 64, 3, 16, True),
        "more sequences than a tile": lambda draw: _case(draw, 16, 4, 8, False, sequences=150),
    },
    timed={
        f"{S}x{R}": (S, R, lambda draw: _case(draw, 64, 8, 8, False))
        for S, R in ((1024, 256), (5120, 384))
    },
)  # fmt: skip

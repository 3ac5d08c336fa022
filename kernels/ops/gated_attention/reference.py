"""`gated_attention` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.attention.reference import biased_attention
from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw, Op
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AttentionWeights", "gated_attention"]


@dataclass(frozen=True, slots=True)
class AttentionWeights(Parameters):
    """Parameters of one gated attention, as OpenFold names them; g_bias and o_bias may be None."""

    biases: ClassVar[dict[str, str]] = {"g_bias": "g", "o_bias": "o"}
    norm_weight: Tensor
    norm_bias: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    g_bias: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    pair: Tensor | None = None
    """`[H, C]`: the attention bias is a product of the same normalised input."""


def gated_attention(
    x: Tensor,
    weights: AttentionWeights,
    heads: int,
    *,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    columns: bool = False,
    turned: bool = False,
    residual: bool = False,
    drop_mask: Tensor | None = None,
    drop_columnwise: bool = False,
    bias_scale: float = 1.0,
    eps: float = 1e-5,
) -> Tensor:
    """drop * linear_o(sigmoid(gate) * attention(layer_norm(x))), plus x if `residual`.

    Args:
        x: `[B, R, N, C]`.
        weights: the parameters; with `weights.pair` the bias comes from x itself (R = N).
        heads: H.
        bias: `[B, H, N, N]` attention bias, where N is the attending axis, or None.
        mask: `[B, R, N]`, 1 where a key may be attended to, or None.
        columns: positions attend along axis R (MSA columns, ending node), not N.
        turned: the bias of query q and key k comes from the pair (k, q) of x.
        residual: True to add x.
        drop_mask: `[B, N, C]` (or `[B, R, C]` if columnwise), scaled by 1/(1-p), or None.
        drop_columnwise: the dropout mask is shared along N, not along R.
        bias_scale: factor that `bias` already has; sqrt(D) saves a rounding.
        eps: of the norm.
    """
    if columns:
        mask = None if mask is None else mask.transpose(1, 2)
        update = gated_attention(
            x.transpose(1, 2), weights, heads, bias=bias, mask=mask, turned=turned,
            bias_scale=bias_scale, eps=eps,
        ).transpose(1, 2)  # fmt: skip
    else:
        xn = layer_norm(x, weights.norm_weight, weights.norm_bias, eps)
        bias = None if bias is None else bias / bias_scale
        if weights.pair is not None:
            bias = F.linear(xn, weights.pair).movedim(-1, 1)
            bias = bias.transpose(-1, -2) if turned else bias
        q, k, v = (split_heads(F.linear(xn, w), heads) for w in (weights.q, weights.k, weights.v))
        o = biased_attention(q, k, v, bias, mask).flatten(-2)
        gate = torch.sigmoid(F.linear(xn, weights.g, weights.g_bias))
        update = F.linear(gate * o, weights.o, weights.o_bias)
    if drop_mask is not None:
        update = update * (drop_mask[:, :, None] if drop_columnwise else drop_mask[:, None])
    return x + update if residual else update


def split_heads(x: Tensor, heads: int) -> Tensor:
    """`[..., H, D]` of `[..., H * D]`."""
    return x.view(*x.shape[:-1], heads, -1)


def _case(
    draw: Draw, C: int, width: int, H: int, *, pairs: bool = False, bias: bool = False,
    masked: bool = False, dropped: bool = False, columns: bool = False, **options: Any,
) -> Case:  # fmt: skip
    S, R = draw.residues if pairs else draw.sequences, draw.residues
    N = H * width
    weights = draw.weights(
        norm_weight=(C,), norm_bias=(C,), q=(N, C), k=(N, C), v=(N, C), g=(N, C), g_bias=(N,),
        o=(C, N), o_bias=(C,), **({"pair": (H, C)} if pairs else {}),
    )  # fmt: skip
    for name in "qkvg":
        weights[name] = 2 * weights[name]
    tensors = {"x": draw(1, S, R, C)} | ({"bias": draw(1, H, R, R)} if bias else {})
    mask = draw.mask(1, S, R) if masked else None
    if mask is not None:
        mask[:, :, -1] = 0.0  # a column without a sequence
    drop = 2 * draw.mask(1, S if columns else R, C) if dropped else None

    def run(op: Op, x: Tensor, bias: Tensor | None = None, **w: Tensor) -> Tensor:
        drop_mask = None if drop is None else drop.to(x.dtype)
        return op(
            x, AttentionWeights(**w), H, bias=bias, mask=mask, columns=columns, drop_mask=drop_mask,
            drop_columnwise=columns and dropped, **options,
        )  # fmt: skip

    return Case(tensors | weights, run)


CASES = Cases(
    {
        "plain": lambda draw: _case(draw, 32, 8, 2),
        "columns": lambda draw: _case(draw, 32, 16, 4, masked=True, columns=True, residual=True),
        "of a bias": lambda draw: _case(draw, 16, 8, 4, bias=True, masked=True),
        "starting node": lambda draw: _case(
            draw, 32, 16, 2, pairs=True, masked=True, dropped=True, residual=True
        ),
        "starting node, turned": lambda draw: _case(draw, 32, 8, 2, pairs=True, turned=True),
        "ending node": lambda draw: _case(
            draw, 32, 8, 2, pairs=True, masked=True, dropped=True, columns=True, residual=True
        ),
        "ending node, turned": lambda draw: _case(
            draw, 32, 16, 2, pairs=True, masked=True, columns=True, turned=True, residual=True
        ),
    },
    {
        "heads of 32": lambda draw: _case(draw, 32, 32, 2, pairs=True, residual=True),
        "columns of 64 channels": lambda draw: _case(
            draw, 64, 8, 8, masked=True, dropped=True, columns=True, residual=True
        ),
        "rows of 256 channels": lambda draw: _case(
            draw, 256, 32, 8, bias=True, masked=True, dropped=True, residual=True
        ),
        "ending node, 128 channels": lambda draw: _case(
            draw, 128, 32, 4, pairs=True, masked=True, dropped=True, columns=True, residual=True
        ),
    },
    timed={
        **{f"row {S}x{R}": (S, R, lambda draw: _case(draw, 256, 32, 8, bias=True, masked=True))
           for S, R in ((128, 256), (512, 384))},
        **{f"triangle {R}": (R, R, lambda draw: _case(draw, 128, 32, 4, pairs=True, masked=True))
           for R in (256, 384)},
    },
)  # fmt: skip

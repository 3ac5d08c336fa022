"""`weighted_average` in plain PyTorch, and the inputs that its kernels are tested with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from evofeed.kernels.ops.layer_norm.reference import layer_norm
from evofeed.kernels.runtime.cases import Case, Cases, Draw
from evofeed.kernels.runtime.checks import Parameters

__all__ = ["AverageWeights", "weighted_average"]


@dataclass(frozen=True, slots=True)
class AverageWeights(Parameters):
    """Parameters of one average: norm, values, gate, output; no biases."""

    norm_weight: Tensor
    norm_bias: Tensor
    v: Tensor
    g: Tensor
    o: Tensor


def weighted_average(
    m: Tensor, shares: Tensor, weights: AverageWeights, *, eps: float = 1e-5
) -> Tensor:
    """o(sigmoid(g(mn)) * sum over j of shares[i, j] v(mn)[j]), where mn = layer_norm(m).

    Args:
        m: `[B, S, N, C]`.
        shares: `[B, H, N, N]`, weights of positions j for each i: a softmax of the pairs.
        weights: the parameters.
        eps: of the norm.

    Returns:
        The update of m, in its type; gradients reach m and shares.
    """
    mn = layer_norm(m, weights.norm_weight, weights.norm_bias, eps)
    v = F.linear(mn, weights.v)
    v = v.view(*v.shape[:-1], shares.shape[1], -1)
    o = torch.einsum("bhij,bsjhd->bsihd", shares.to(v.dtype), v).flatten(-2)
    return F.linear(torch.sigmoid(F.linear(mn, weights.g)) * o, weights.o)


def _case(draw: Draw, C: int, H: int, width: int, sequences: int | None = None) -> Case:
    S, R, N = sequences or draw.sequences, draw.residues, H * width
    weights = draw.weights(norm_weight=(C,), norm_bias=(C,), v=(N, C), g=(N, C), o=(C, N))
    shares = torch.softmax(2 * draw(1, H, R, R), -1)
    return Case(
        {"m": draw(1, S, R, C), "shares": shares, **weights},
        lambda op, m, shares, **w: op(m, shares, AverageWeights(**w)),
    )


CASES = Cases(
    {"plain": lambda draw: _case(draw, 16, 2, 8)},
    {"more sequences than a tile": lambda draw: _case(draw, 32, 4, 16, sequences=67)},
    timed={
        f"{S} x {R}": (S, R, lambda draw: _case(draw, 64, 8, 32))
        for S, R in ((512, 256), (1024, 384))
    },
)  # fmt: skip

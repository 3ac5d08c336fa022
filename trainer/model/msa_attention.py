"""Attention along the rows and columns of the MSA (AF2 SI 1.6.1, 1.6.2, 1.7.2).

Letters: S sequences, R residues, H heads, C channels of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.primitives import (
    Attention,
    LayerNorm,
    Linear,
    as_bias,
    gated_attention,
    in_float32,
    mask_bias,
)


class MSARowAttentionWithPairBias(nn.Module):
    """Every residue of a row attends to that row, biased by the pair representation.

    Source: AF2 SI algorithm 7.
    """

    def __init__(self, c_m: int, c_z: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__()
        self.inf = inf
        self.layer_norm_m = LayerNorm(c_m)
        self.layer_norm_z = LayerNorm(c_z)
        self.linear_z = Linear(c_z, no_heads, bias=False, init="normal")
        self.mha = Attention(c_m, c_m, c_m, c_hidden, no_heads)

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        z: Float[Tensor, "*B R R c_z"],
        mask: Float[Tensor, "*B S R"] | None = None,
    ) -> Float[Tensor, "*B S R c_m"]:
        """Update of `m`."""
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        key_bias = mask_bias(mask, self.inf)[..., :, None, None, :]
        pair_bias = self.linear_z(self.layer_norm_z(z)).movedim(-1, -3)[..., None, :, :, :]
        m = self.layer_norm_m(m)
        return self.mha(m, m, [key_bias, pair_bias])  # type: ignore[no-any-return]


class MSAAttention(nn.Module):
    """Every residue of a row attends to that row, without a pair bias."""

    def __init__(self, c_m: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__()
        self.inf = inf
        self.layer_norm_m = LayerNorm(c_m)
        self.mha = Attention(c_m, c_m, c_m, c_hidden, no_heads)

    def forward(
        self,
        m: Float[Tensor, "*B R S c_m"],
        z: None = None,
        mask: Float[Tensor, "*B R S"] | None = None,
    ) -> Float[Tensor, "*B R S c_m"]:
        """Update of `m`; `z` is accepted for callers of either row attention."""
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        m = self.layer_norm_m(m)
        bias = mask_bias(mask, self.inf)[..., :, None, None, :]
        return self.mha(m, m, [bias])  # type: ignore[no-any-return]


class MSAColumnAttention(nn.Module):
    """Every sequence attends to the others at the same residue. Source: AF2 SI algorithm 8."""

    def __init__(self, c_m: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__()
        self._msa_att = MSAAttention(c_m, c_hidden, no_heads, inf)

    def forward(
        self,
        m: Float[Tensor, "*B S R c_m"],
        mask: Float[Tensor, "*B S R"] | None = None,
    ) -> Float[Tensor, "*B S R c_m"]:
        """Update of `m`."""
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        update: Tensor = self._msa_att(m.transpose(-2, -3), mask=mask.transpose(-1, -2))
        return update.transpose(-2, -3)


class GlobalAttention(nn.Module):
    """One query per column, the mean of its sequences; one key and value shared by all heads.

    Source: AF2 SI algorithm 19, lines 2 to 7.
    """

    def __init__(
        self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9, eps: float = 1e-8
    ) -> None:
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.inf = inf
        self.eps = eps
        width = c_hidden * no_heads
        self.linear_q = Linear(c_in, width, bias=False, init="glorot")
        self.linear_k = Linear(c_in, c_hidden, bias=False, init="glorot")
        self.linear_v = Linear(c_in, c_hidden, bias=False, init="glorot")
        self.linear_g = Linear(c_in, width, init="gating")
        self.linear_o = Linear(width, c_in, init="final")

    def forward(
        self, m: Float[Tensor, "*B R S c"], mask: Float[Tensor, "*B R S"]
    ) -> Float[Tensor, "*B R S c"]:
        """Update of `m`, transposed to residues first."""
        with in_float32("global_query", m) as (wide,):
            total = torch.sum(wide * mask.to(wide.dtype)[..., None], dim=-2)
            mean = total / (torch.sum(mask, dim=-1)[..., None] + self.eps).to(wide.dtype)
        q = self.linear_q(mean).unflatten(-1, (self.no_heads, self.c_hidden))
        q = q * self.c_hidden**-0.5
        bias = as_bias(mask_bias(mask, self.inf)[..., None, :], q.dtype)
        o = gated_attention(q, self.linear_k(m), self.linear_v(m), [bias])
        gate = torch.sigmoid(self.linear_g(m))
        return self.linear_o(gate * o.flatten(-2)[..., None, :])  # type: ignore[no-any-return]


class MSAColumnGlobalAttention(nn.Module):
    """Column attention cheap enough for thousands of sequences. Source: AF2 SI algorithm 19."""

    def __init__(
        self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9, eps: float = 1e-8
    ) -> None:
        super().__init__()
        self.layer_norm_m = LayerNorm(c_in)
        self.global_attention = GlobalAttention(c_in, c_hidden, no_heads, inf, eps)

    def forward(
        self,
        m: Float[Tensor, "*B S R c"],
        mask: Float[Tensor, "*B S R"] | None = None,
    ) -> Float[Tensor, "*B S R c"]:
        """Update of `m`."""
        mask = m.new_ones(m.shape[:-1]) if mask is None else mask
        m = self.layer_norm_m(m.transpose(-2, -3))
        update: Tensor = self.global_attention(m, mask.transpose(-1, -2))
        return update.transpose(-2, -3)

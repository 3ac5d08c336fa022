"""The four triangle updates of the pair representation (AF2 SI 1.6.5 and 1.6.6).

Letters: R residues (i, j, k), H heads, c_z pair channels, C hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.primitives import Attention, LayerNorm, Linear, in_float32, mask_bias


class _TriangleMultiplication(nn.Module):
    """Base of both multiplications. With `fused`, the projections of a and b are one matrix, a
    first, as later checkpoints store them.
    """

    _outgoing: bool

    def __init__(self, c_z: int, c_hidden: int, fused: bool = False) -> None:
        super().__init__()
        self.c_hidden, self.fused = c_hidden, fused
        self.linear_g = Linear(c_z, c_z, init="gating")
        self.linear_z = Linear(c_hidden, c_z, init="final")
        self.layer_norm_in = LayerNorm(c_z)
        self.layer_norm_out = LayerNorm(c_hidden)
        if fused:
            self.linear_ab_p = Linear(c_z, 2 * c_hidden)
            self.linear_ab_g = Linear(c_z, 2 * c_hidden, init="gating")
            return
        self.linear_a_p = Linear(c_z, c_hidden)
        self.linear_a_g = Linear(c_z, c_hidden, init="gating")
        self.linear_b_p = Linear(c_z, c_hidden)
        self.linear_b_g = Linear(c_z, c_hidden, init="gating")

    def _project(self, z: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.fused:
            ab = mask * torch.sigmoid(self.linear_ab_g(z)) * self.linear_ab_p(z)
            a, b = ab.chunk(2, dim=-1)
            return a, b
        a = mask * torch.sigmoid(self.linear_a_g(z)) * self.linear_a_p(z)
        b = mask * torch.sigmoid(self.linear_b_g(z)) * self.linear_b_p(z)
        return a, b

    def forward(
        self,
        z: Float[Tensor, "*B R R c_z"],
        mask: Float[Tensor, "*B R R"] | None = None,
    ) -> Float[Tensor, "*B R R c_z"]:
        """Update of `z`: the sum over k of the two other edges of each triangle."""
        mask = z.new_ones(z.shape[:-1]) if mask is None else mask
        z = self.layer_norm_in(z)
        a, b = self._project(z, mask.to(z.dtype)[..., None])
        a, b = a.movedim(-1, -3), b.movedim(-1, -3)  # [*B, C, R, R]
        with in_float32("triangle_product", a, b) as (a, b):
            if self._outgoing:
                product = torch.matmul(a, b.transpose(-1, -2))  # sum_k a_ik b_jk
            else:
                product = torch.matmul(a.transpose(-1, -2), b)  # sum_k a_ki b_kj
        update = self.linear_z(self.layer_norm_out(product.movedim(-3, -1)))
        return update * torch.sigmoid(self.linear_g(z))  # type: ignore[no-any-return]


class TriangleMultiplicationOutgoing(_TriangleMultiplication):
    """Edges i->k and j->k update i->j. Source: AF2 SI algorithm 11."""

    _outgoing = True


class TriangleMultiplicationIncoming(_TriangleMultiplication):
    """Edges k->i and k->j update i->j. Source: AF2 SI algorithm 12."""

    _outgoing = False


class _TriangleAttention(nn.Module):
    starting: bool

    def __init__(self, c_in: int, c_hidden: int, no_heads: int, inf: float = 1e9) -> None:
        super().__init__()
        self.inf = inf
        self.layer_norm = LayerNorm(c_in)
        self.linear = Linear(c_in, no_heads, bias=False, init="normal")
        self.mha = Attention(c_in, c_in, c_in, c_hidden, no_heads)

    def forward(
        self,
        x: Float[Tensor, "*B R R c_z"],
        mask: Float[Tensor, "*B R R"] | None = None,
    ) -> Float[Tensor, "*B R R c_z"]:
        """Update of the pair representation `x`."""
        mask = x.new_ones(x.shape[:-1]) if mask is None else mask
        if not self.starting:
            x, mask = x.transpose(-2, -3), mask.transpose(-1, -2)
        x = self.layer_norm(x)
        key_bias = mask_bias(mask, self.inf)[..., :, None, None, :]
        triangle_bias = self.linear(x).movedim(-1, -3)[..., None, :, :, :]
        update: Tensor = self.mha(x, x, [key_bias, triangle_bias])
        return update if self.starting else update.transpose(-2, -3)


class TriangleAttentionStartingNode(_TriangleAttention):
    """Edge i->j attends to all i->k, biased by j->k. Source: AF2 SI algorithm 13."""

    starting = True


class TriangleAttentionEndingNode(_TriangleAttention):
    """Edge i->j attends to all k->j, biased by k->i. Source: AF2 SI algorithm 14."""

    starting = False

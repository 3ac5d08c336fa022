"""Invariant point attention as AF2-multimer has it: the same maths, other projections.

Queries, keys and values have no bias, keys and values layers of their own, and the channels of a
point projection are ordered by head first. Source: AlphaFold-Multimer's code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evofeed.base.shapes import Float
from evofeed.trainer.model.ipa import InvariantPointAttention, PointProjection
from evofeed.trainer.model.primitives import Linear


class InvariantPointAttentionMultimer(InvariantPointAttention):
    """Update of the single representation, invariant under a global rigid motion."""

    _mask_factor = math.sqrt(1 / 3)  # the mask is added before the terms are averaged

    def _add_projections(self, c_s: int, width: int) -> None:
        self.linear_q = Linear(c_s, width, bias=False)
        self.linear_k = Linear(c_s, width, bias=False)
        self.linear_v = Linear(c_s, width, bias=False)
        self.linear_q_points = PointProjection(c_s, self.no_qk_points, self.no_heads)
        self.linear_k_points = PointProjection(c_s, self.no_qk_points, self.no_heads)
        self.linear_v_points = PointProjection(c_s, self.no_v_points, self.no_heads)

    def _projections(self) -> tuple[Float[Tensor, "D c_s"], Float[Tensor, " D"]]:
        """The same rows in the monomer's order, which is what the attention reads."""
        q, k, v = (layer.weight for layer in (self.linear_q, self.linear_k, self.linear_v))
        by_head = [torch.unflatten(weight, 0, (self.no_heads, -1)) for weight in (k, v)]
        kv = torch.cat(by_head, dim=1).flatten(0, 1)
        layers = [
            p.linear for p in (self.linear_q_points, self.linear_k_points, self.linear_v_points)
        ]
        q_points, kv_points = self._point_rows([layer.weight for layer in layers])
        q_bias, kv_bias = self._point_rows([layer.bias for layer in layers])
        bias = torch.cat([q.new_zeros(q.shape[0] + kv.shape[0]), q_bias, kv_bias])
        return torch.cat([q, kv, q_points, kv_points]), bias

    def _point_rows(self, parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Rows [head, xyz, point] of q, k and v as [xyz, head, point], those of k and v joined."""
        q, k, v = (
            torch.unflatten(part, 0, (self.no_heads, 3, -1)).transpose(0, 1) for part in parts
        )
        return q.flatten(0, 2), torch.cat([k, v], dim=2).flatten(0, 2)

    def _norm(self, local: Tensor) -> Tensor:
        return torch.sqrt(torch.clamp(torch.sum(local**2, dim=-2), min=self.eps**2))

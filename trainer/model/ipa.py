"""Invariant point attention: attention that also looks at distances in 3D space.

Source: AF2 SI 1.8.2, algorithm 22. Letters: R residues, H heads, P points.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.shapes import Float
from evofeed.trainer.model.init import IPA_HEAD_WEIGHT
from evofeed.trainer.model.primitives import Linear, mask_bias
from evofeed.trainer.model.rigid import Rigid, apply, invert_apply

__all__ = ["InvariantPointAttention", "PointProjection"]


class PointProjection(nn.Module):
    """A linear layer whose output is points in each residue's frame, moved to the global one.

    The output channels are all x, then all y, then all z; within each, heads are outermost.
    """

    def __init__(self, c_s: int, no_points: int, no_heads: int) -> None:
        super().__init__()
        self.no_heads = no_heads
        self.linear = Linear(c_s, no_heads * no_points * 3)

    def forward(self, s: Float[Tensor, "*B R c_s"], frames: Rigid) -> Float[Tensor, "*B R H P 3"]:
        """Global points of each head."""
        local = self.linear(s).unflatten(-1, (3, -1)).transpose(-1, -2)  # [*, R, H*P, 3]
        return torch.unflatten(apply(frames.unsqueeze(-1), local), -2, (self.no_heads, -1))


class InvariantPointAttention(nn.Module):
    """Update of the single representation, invariant under a global rigid motion.

    All projections have a bias, unlike in the supplement (as in AF2's own code).
    """

    def __init__(
        self,
        c_s: int,
        c_z: int,
        c_hidden: int,
        no_heads: int,
        no_qk_points: int,
        no_v_points: int,
        inf: float = 1e5,
        eps: float = 1e-8,
    ) -> None:
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.no_qk_points = no_qk_points
        self.no_v_points = no_v_points
        self.inf = inf
        self.eps = eps
        width = c_hidden * no_heads
        self.linear_q = Linear(c_s, width)
        self.linear_kv = Linear(c_s, 2 * width)
        self.linear_q_points = PointProjection(c_s, no_qk_points, no_heads)
        self.linear_kv_points = PointProjection(c_s, no_qk_points + no_v_points, no_heads)
        self.linear_b = Linear(c_z, no_heads)
        self.head_weights = nn.Parameter(torch.full([no_heads], IPA_HEAD_WEIGHT))
        concat = no_heads * (c_z + c_hidden + no_v_points * 4)
        self.linear_out = Linear(concat, c_s, init="final")

    def forward(
        self,
        s: Float[Tensor, "*B R c_s"],
        z: Float[Tensor, "*B R R c_z"],
        frames: Rigid,
        mask: Float[Tensor, "*B R"],
    ) -> Float[Tensor, "*B R c_s"]:
        """Update of `s`; `frames` are the current backbone frames."""
        q = self.linear_q(s).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
        kv = self.linear_kv(s).unflatten(-1, (self.no_heads, -1)).transpose(-2, -3)
        k, v = kv.chunk(2, dim=-1)  # [*, H, R, C]
        q_points = self.linear_q_points(s, frames)
        kv_points = self.linear_kv_points(s, frames)
        k_points, v_points = kv_points.split([self.no_qk_points, self.no_v_points], dim=-2)

        logits = torch.matmul(q, k.transpose(-1, -2)) * math.sqrt(1 / (3 * self.c_hidden))
        logits = logits + math.sqrt(1 / 3) * self.linear_b(z).movedim(-1, -3)
        logits = logits + self._point_logits(q_points, k_points)
        pair_mask = mask[..., :, None] * mask[..., None, :]
        logits = logits + mask_bias(pair_mask, self.inf)[..., None, :, :]
        weights = torch.softmax(logits, dim=-1)  # [*, H, R, R]
        return self._output(weights, v, v_points, z, frames)

    def _point_logits(self, q_points: Tensor, k_points: Tensor) -> Tensor:
        """-1/2 sum over points of gamma |T_i q - T_j k|^2, `[*, H, R, R]`."""
        gamma = F.softplus(self.head_weights) * math.sqrt(1 / (3 * (self.no_qk_points * 9 / 2)))
        difference = q_points[..., :, None, :, :, :] - k_points[..., None, :, :, :, :]
        square = torch.sum(difference**2, dim=(-1, -2))  # [*, R, R, H]
        return (-0.5 * gamma * square).movedim(-1, -3)

    def _output(
        self, weights: Tensor, v: Tensor, v_points: Tensor, z: Tensor, frames: Rigid
    ) -> Tensor:
        scalar = torch.matmul(weights, v).transpose(-2, -3).flatten(-2)
        points = torch.einsum("...hij,...jhpx->...ihpx", weights, v_points).flatten(-3, -2)
        points = invert_apply(frames.unsqueeze(-1), points)  # [*, R, H*P, 3]
        norm = torch.sqrt(torch.sum(points**2, dim=-1) + self.eps)
        pair = torch.einsum("...hij,...ijc->...ihc", weights, z).flatten(-2)
        x, y, w = torch.unbind(points, dim=-1)
        return self.linear_out(torch.cat([scalar, x, y, w, norm, pair], dim=-1))  # type: ignore[no-any-return]

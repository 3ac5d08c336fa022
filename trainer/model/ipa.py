"""Invariant point attention (IPA): attention with a term of distances in 3D space.

Source: AF2 SI 1.8.2, algorithm 22. Letters: R residues, H heads, P points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from evofeed.base.shapes import Float
from evofeed.trainer.model.primitives import ExactLinear, Linear, exact_products, mask_bias
from evofeed.trainer.model.rigid import Rigid

_HEAD_WEIGHT = 0.541324854612918  # softplus of it is 1


class SharedTerms(NamedTuple):
    """Terms computed once for all layers of the structure module.

    Letters: D output channels of all projections of `s`.
    """

    weight: Float[Tensor, "D c_s"]
    weight_bias: Float[Tensor, " D"]
    bias: Float[Tensor, "*B H R R"]
    gamma: Float[Tensor, " H"]


class PointProjection(nn.Module):
    """Container of the linear layer whose outputs are points in each residue's frame.

    The output channels are all x, then all y, then all z; within each, heads are outermost.
    """

    def __init__(self, c_s: int, no_points: int, no_heads: int) -> None:
        super().__init__()
        self.no_heads = no_heads
        self.linear = Linear(c_s, no_heads * no_points * 3)


class InvariantPointAttention(nn.Module):
    """Update of the single representation, invariant under a global rigid motion.

    All projections have a bias, unlike in the supplement (as in AF2's own code).
    """

    _mask_factor = 1.0

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
        self._add_projections(c_s, c_hidden * no_heads)
        self.linear_b = Linear(c_z, no_heads)
        self.head_weights = nn.Parameter(torch.full([no_heads], _HEAD_WEIGHT))
        concat = no_heads * (c_z + c_hidden + no_v_points * 4)
        self.linear_out = ExactLinear(concat, c_s, init="final")

    def _add_projections(self, c_s: int, width: int) -> None:
        self.linear_q = Linear(c_s, width)
        self.linear_kv = Linear(c_s, 2 * width)
        self.linear_q_points = PointProjection(c_s, self.no_qk_points, self.no_heads)
        self.linear_kv_points = PointProjection(
            c_s, self.no_qk_points + self.no_v_points, self.no_heads
        )

    def _projections(self) -> tuple[Float[Tensor, "D c_s"], Float[Tensor, " D"]]:
        """Weight and bias of all projections of `s`: q, kv by head, points of q, of k and v."""
        points = (self.linear_q_points.linear, self.linear_kv_points.linear)
        layers = (self.linear_q, self.linear_kv, *points)
        weights, biases = zip(*((layer.weight, layer.bias) for layer in layers), strict=True)
        return torch.cat(weights), torch.cat(biases)

    def share(self, z: Float[Tensor, "*B R R c_z"], mask: Float[Tensor, "*B R"]) -> SharedTerms:
        """The terms that do not depend on the frames or `s`, so are the same in all layers."""
        weight, weight_bias = self._projections()
        return SharedTerms(
            weight=weight,
            weight_bias=weight_bias,
            bias=self.bias(z, mask, mask),
            gamma=F.softplus(self.head_weights) * math.sqrt(2 / (27 * self.no_qk_points)),
        )

    def bias(
        self, z: Float[Tensor, "*B I R c_z"], row_mask: Float[Tensor, "*B I"], mask: Tensor
    ) -> Float[Tensor, "*B H I R"]:
        """The bias of the logits from rows of pairs; `row_mask` is the mask of their residues."""
        pair_mask = row_mask[..., :, None] * mask[..., None, :]
        bias = math.sqrt(1 / 3) * self.linear_b(z)
        bias = bias + mask_bias(pair_mask, self.inf * self._mask_factor)[..., None]
        return bias.movedim(-1, -3).contiguous()  # type: ignore[no-any-return]

    def _norm(self, local: Tensor) -> Tensor:
        return torch.sqrt(torch.sum(local**2, dim=-2) + self.eps)

    def forward(
        self,
        s: Float[Tensor, "*B R c_s"],
        z: Float[Tensor, "*B R R c_z"],
        frames: Rigid,
        mask: Float[Tensor, "*B R"],
        shared: SharedTerms | None = None,
    ) -> Float[Tensor, "*B R c_s"]:
        """Update of `s`, given the current backbone frames and the output of `share`."""
        shared = self.share(z, mask) if shared is None else shared
        sides, values, frames = self.project(s, frames, shared)
        return self.attend(sides, values, shared.bias, z, frames)

    def project(
        self, s: Tensor, frames: Rigid, shared: SharedTerms
    ) -> tuple[tuple[Tensor, Tensor], Tensor, Rigid]:
        """Both sides of the logits `[*, H, R, channels]`, values `[*, R, H, C]`, centred frames."""
        # The rest does not depend on the origin: coordinates near it lose no digits in squares.
        centre = frames.trans.detach().mean(dim=-2, keepdim=True)
        frames = Rigid(frames.rots, frames.trans - centre)
        H, C, P = self.no_heads, self.c_hidden, self.no_qk_points
        q, kv, q_local, kv_local = torch.split(
            F.linear(s, shared.weight, shared.weight_bias),
            [H * C, 2 * H * C, 3 * H * P, 3 * H * (P + self.no_v_points)], dim=-1,
        )  # fmt: skip
        q = torch.unflatten(q, -1, (H, -1))
        k, v = torch.unflatten(kv, -1, (H, -1)).chunk(2, dim=-1)  # [*, R, H, C]
        q_points, k_points, v_points = self._points(q_local, kv_local, frames)
        sides = self._sides(q, k, q_points, k_points, shared.gamma)
        return sides, torch.cat([v, v_points], dim=-1), frames

    def attend(
        self, sides: tuple[Tensor, Tensor], values: Tensor, bias: Tensor, z: Tensor, frames: Rigid
    ) -> Float[Tensor, "*B I c_s"]:
        """The update of the residues of the given left side, bias, pairs and frames."""
        left, right = (side.flatten(0, -3) for side in sides)
        with exact_products():  # never in TF32
            logits = torch.baddbmm(bias.flatten(0, -3), left, right.transpose(-1, -2))
        weights = torch.softmax(logits.view(bias.shape), dim=-1)
        pair = torch.einsum("...hij,...ijc->...ihc", weights, z).flatten(-2)  # heads outermost
        outputs = self._outputs(torch.matmul(weights, values.transpose(-2, -3)), frames)
        return self.linear_out(torch.cat([outputs, pair], dim=-1))  # type: ignore[no-any-return]

    def _points(
        self, q_local: Tensor, kv_local: Tensor, frames: Rigid
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Global points of queries, keys and values, `[*, R, H, 3 P]` (all x, then y, then z)."""
        sides = [torch.unflatten(side, -1, (3, -1)) for side in (q_local, kv_local)]
        local = torch.cat(sides, dim=-1)
        moved = torch.sum(frames.rots[..., None] * local[..., None, :, :], dim=-2)
        points = moved + frames.trans[..., None]  # [*, R, 3, points]
        q, kv = torch.split(points, [side.shape[-1] for side in sides], dim=-1)
        q, kv = (torch.unflatten(side, -1, (self.no_heads, -1)) for side in (q, kv))
        k, v = torch.split(kv, [self.no_qk_points, self.no_v_points], dim=-1)
        q, k, v = (part.transpose(-2, -3).flatten(-2) for part in (q, k, v))
        return q, k, v

    def _sides(
        self, q: Tensor, k: Tensor, q_points: Tensor, k_points: Tensor, gamma: Tensor
    ) -> tuple[Float[Tensor, "*B H R D"], Float[Tensor, "*B H R D"]]:
        """Factors of the logits: of q k^T, and of -1/2 sum over points of gamma |q - k|^2.

        The term of |q|^2 is omitted: the softmax over the keys does not depend on it.
        """
        scaled = gamma[:, None] * k_points
        square = -0.5 * torch.unflatten(scaled * k_points, -1, (3, -1)).sum(dim=-2)  # [*, R, H, P]
        left = torch.cat([q, q_points, torch.ones_like(square)], dim=-1)
        right = torch.cat([math.sqrt(1 / (3 * self.c_hidden)) * k, scaled, square], dim=-1)
        return left.transpose(-2, -3), right.transpose(-2, -3)

    def _outputs(self, attended: Tensor, frames: Rigid) -> Float[Tensor, "*B I D"]:
        """Channels, points in each residue's frame and their norms, heads outermost in each."""
        attended = attended.transpose(-2, -3)
        scalar, points = torch.split(attended, [self.c_hidden, 3 * self.no_v_points], dim=-1)
        points = torch.unflatten(points, -1, (3, -1)).transpose(-2, -3).flatten(-2)  # [*, R, 3, HP]
        points = points - frames.trans[..., None]
        local = torch.sum(frames.rots[..., None] * points[..., None, :], dim=-3)
        return torch.cat([scalar.flatten(-2), local.flatten(-2), self._norm(local)], dim=-1)


class InvariantPointAttentionMultimer(InvariantPointAttention):
    """The same computation with the projections of AlphaFold-Multimer's code.

    Queries, keys and values have no bias, keys and values have separate layers, and the channels
    of a point projection are ordered by head first.
    """

    _mask_factor = math.sqrt(1 / 3)  # the mask is added before the terms are averaged

    def _add_projections(self, c_s: int, width: int) -> None:
        self.linear_q = Linear(c_s, width, bias=False)
        self.linear_k = Linear(c_s, width, bias=False)
        self.linear_v = Linear(c_s, width, bias=False)
        self.linear_q_points = PointProjection(c_s, self.no_qk_points, self.no_heads)
        self.linear_k_points = PointProjection(c_s, self.no_qk_points, self.no_heads)
        self.linear_v_points = PointProjection(c_s, self.no_v_points, self.no_heads)

    def _projections(self) -> tuple[Float[Tensor, "D c_s"], Float[Tensor, " D"]]:
        """The same rows in the monomer's order, which the attention expects."""
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
